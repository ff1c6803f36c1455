// Runs vitconvert's recogniser (docs/browser.py) in Pyodide. Files are read in slices, when Python
// asks for them: those that were dropped by FileReaderSync, those of the Hub by range.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const begun = begin();
begun.then(() => postMessage({ ready: true })).catch(() => {}); // each question tells of it
const EIO = 29; // Emscripten's number of an input/output error
let mounted = 0;
let last = Promise.resolve();
let refusal = ""; // of the server, in this answer

onmessage = ({ data }) => {
  last = last.then(() => answer(data)).catch((error) => {
    const text = `error: browser\n  ${String(error.message ?? error).trim().split("\n").pop()}`;
    postMessage({ id: data.id, header: { problem: { code: "", text, note: "" } } });
  });
};

async function begin() {
  const archive = fetch(new URL("vitconvert.zip", import.meta.url));
  const pyodide = await loadPyodide();
  pyodide.unpackArchive(await (await archive).arrayBuffer(), "zip", { extractDir: "/vitconvert" });
  pyodide.runPython("import sys; sys.path.insert(0, '/vitconvert')");
  return { FS: pyodide.FS, browser: pyodide.pyimport("browser") };
}

async function answer({ id, files, hub, reference = "", answers }) {
  const { FS, browser } = await begun;
  refusal = "";
  const found = files ? await readable(files) : await published(FS, browser, hub, reference);
  if (found.problem) return postMessage({ id, header: found });
  const folder = `/files/${(mounted += 1)}`;
  FS.mkdirTree(folder);
  FS.mount(FS.filesystems.WORKERFS, found.opts, folder);
  const asked = [folder, reference, found.described ?? "", JSON.stringify(answers)];
  const header = JSON.parse(browser.header(...asked));
  if (header.problem) header.problem.note ||= refusal;
  postMessage({ id, header });
  if (!header.problem) postMessage({ id, targets: JSON.parse(browser.targets(...asked)) });
}

// A folder is dropped as a file that cannot be read, and an error in the midst of reading ends Python.
async function readable(files) {
  await Promise.all(files.map((file) => file.slice(0, 1).arrayBuffer()));
  return { opts: { files } };
}

// The files of a repository, of which nothing is fetched yet.
async function published(FS, browser, hub, reference) {
  const asked = JSON.parse(browser.listing(reference));
  if (asked.problem) return asked;
  const response = await fetch(`${hub}/${asked.address}`);
  if (!response.ok) throw new Error(`The Hub answers ${response.status}: ${reference} is not there, or not public.`);
  const described = await response.text();
  const { problem, address, sizes } = JSON.parse(browser.published(reference, described));
  if (problem) return { problem };
  const blobs = Object.entries(sizes).map(([name, size]) => {
    const path = name.split("/").map(encodeURIComponent).join("/");
    return { name, data: new Remote(FS, `${hub}/${address}${path}`, size) };
  });
  return { described, opts: { blobs } };
}

// As much of a Blob as WORKERFS asks for, of a file on a server.
class Remote {
  static least = 2 ** 17; // bytes that are asked for at once: most headers are shorter

  constructor(FS, url, size) {
    Object.assign(this, { FS, url, size, begin: 0, bytes: new Uint8Array() });
  }

  slice(begin, end) {
    end = Math.min(end, this.size);
    if (begin < this.begin || end > this.begin + this.bytes.length) {
      this.bytes = this.fetched(begin, Math.min(Math.max(end, begin + Remote.least), this.size));
      this.begin = begin;
    }
    return new Blob([this.bytes.subarray(begin - this.begin, end - this.begin)]);
  }

  fetched(begin, end) {
    const request = new XMLHttpRequest();
    request.open("GET", this.url, false); // Python waits
    request.responseType = "arraybuffer";
    request.setRequestHeader("Range", `bytes=${begin}-${end - 1}`);
    request.send();
    const bytes = new Uint8Array(request.response ?? 0);
    if (request.status === 206 && bytes.length === end - begin) return bytes;
    if (request.status === 200 && bytes.length === this.size) return bytes.subarray(begin, end);
    refusal = `The Hub answers ${request.status} for ${this.url}.`;
    throw new this.FS.ErrnoError(EIO);
  }
}
