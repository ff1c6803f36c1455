// node transformers_js.mjs GOLDEN CONFIG.json THEIRS.safetensors: what transformers.js makes of images
import fs from "node:fs";
import { CLIPImageProcessor, RawImage, ViTImageProcessor } from "@huggingface/transformers";

const [golden, file, output] = process.argv.slice(2);
const config = JSON.parse(fs.readFileSync(file));
const kinds = { CLIPImageProcessor, ViTImageProcessor };
const processor = new kinds[config.image_processor_type](config);
const header = {}, parts = [];
let at = 0;

function put(name, values, dtype, shape) {
  const bytes = Buffer.from(values.buffer, values.byteOffset, values.byteLength);
  header[name] = { dtype, shape, data_offsets: [at, at + bytes.length] };
  at += bytes.length;
  parts.push(bytes);
}

for (const name of Object.keys(JSON.parse(fs.readFileSync(`${golden}/vitconvert.json`)).images)) {
  const image = await RawImage.read(`${golden}/${name}`);
  const rgb = image.clone().rgb();
  put(`${name}/decoded`, rgb.data, "U8", [rgb.height, rgb.width, rgb.channels]);
  const { pixel_values } = await processor([image]);
  put(`${name}/normalised`, pixel_values.data, "F32", pixel_values.dims);
}
const text = Buffer.from(JSON.stringify(header));
const length = Buffer.alloc(8);
length.writeBigUInt64LE(BigInt(text.length));
fs.writeFileSync(output, Buffer.concat([length, text, ...parts]));
