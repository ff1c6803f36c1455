"use strict"
// Draws maps over images. `page.py` says how their numbers are stored.

const content = JSON.parse(document.getElementById("data").textContent)
const element = (id) => document.getElementById(id)
const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0))
const palette = bytes(content.palette)
const NAMES = {
  attention: "attention", rollout: "attention rollout", pooling: "map pooling",
  similarity: "similarity of features", norms: "norms of tokens", components: "components of features",
}

// What is shown; `pinned` and `hovered` have a place for each image: shares of its sides.
const state = { what: "attention", layer: 0, head: 0, token: "", opacity: 0.75, hidden: false, grid: false }
const pinned = new Map()
let hovered = null

async function inflated(text) {
  const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"))
  return new Response(stream).arrayBuffer()
}

async function unpack(view) {
  const buffer = await inflated(view.data)
  const total = view.planes.reduce((sum, plane) => sum + plane[3], 0)
  const prefix = view.prefix.length
  view.patches = view.grid[0] * view.grid[1]
  view.least = new Float32Array(buffer, 0, total)
  view.largest = new Float32Array(buffer, 4 * total, total)
  view.given = new Float32Array(buffer, 8 * total, prefix * total)
  view.stored = new Uint8Array(buffer, (8 + 4 * prefix) * total)
  view.found = new Map()
  let first = 0
  for (const [what, layer, head, rows, side] of view.planes) {
    view.found.set(`${what} ${layer} ${head}`, { first, rows, side })
    first += rows
  }
  const of = (what) => view.planes.filter((plane) => plane[0] === what)
  view.layers = [...new Set(of("attention").map((plane) => plane[1]))]
  view.heads = [...new Set(of("attention").map((plane) => plane[2]))]
  view.poolHeads = of("pooling").map((plane) => plane[2])
  view.whats = new Set(view.planes.map((plane) => plane[0]))
  if (view.components) {
    view.components = bytes(view.components)
    view.whats.add("components")
  }
}

// The query of a view: a name of a token, "mean", "pooling", or [row, column].
function queryOf(view) {
  const place = hovered && hovered.photograph === view.photograph
    ? hovered : pinned.get(view.photograph)
  if (place) {
    const patch = patchAt(view, place)
    if (patch) return patch
  }
  const known = view.prefix.includes(state.token) || state.token === "mean" ||
    (state.token === "pooling" && view.poolHeads.length)
  const token = known ? state.token : view.query
  if (Array.isArray(token)) return token
  const single = state.what !== "similarity" || view.prefix.includes(token)
  return single ? token : view.grid.map((side) => Math.floor(side / 2))
}

function patchAt(view, { y, x }) {
  const [top, left, bottom, right] = view.box
  const row = Math.floor((y - top) / (bottom - top) * view.grid[0])
  const column = Math.floor((x - left) / (right - left) * view.grid[1])
  const inside = row >= 0 && row < view.grid[0] && column >= 0 && column < view.grid[1]
  return inside ? [row, column] : null
}

function centreOf(view, [row, column]) {
  const [top, left, bottom, right] = view.box
  return {
    photograph: view.photograph,
    y: top + (row + 0.5) / view.grid[0] * (bottom - top),
    x: left + (column + 0.5) / view.grid[1] * (right - left),
  }
}

// The plane that is shown, in words and by its rows.
function chosen(view, query, number = state.head) {
  const what = view.whats.has(state.what) ? state.what : "attention"
  if (what === "components") return { what, words: NAMES[what] }
  if (what === "pooling" || (what === "attention" && query === "pooling")) {
    const head = view.poolHeads[Math.min(number, view.poolHeads.length - 1)]
    const words = head === "mean" ? "map pooling, mean over heads" : `map pooling, head ${head}`
    return { what: "pooling", words, ...view.found.get(`pooling 0 ${head}`) }
  }
  if (what === "attention") {
    const layer = view.layers[Math.min(state.layer, view.layers.length - 1)]
    const head = view.heads[Math.min(number, view.heads.length - 1)]
    const words = `block ${layer}, ${head === "mean" ? "mean over heads" : `head ${head}`}`
    return { what, words, ...view.found.get(`attention ${layer} ${head}`) }
  }
  return { what, words: NAMES[what], ...view.found.get(`${what} 0 mean`) }
}

function rowsOf(view, plane, query) {
  if (plane.rows === 1) return [plane.first]
  const prefix = view.prefix.length
  const first = plane.first
  if (query === "pooling") return [first + prefix + view.patches]
  const columns = view.grid[1]
  const rowOf = (row, column) => first + prefix + Math.floor(column / plane.side) +
    Math.floor(row / plane.side) * Math.ceil(columns / plane.side)
  if (query === "mean") {
    return Array.from({ length: view.patches }, (_, i) => rowOf(Math.floor(i / columns), i % columns))
  }
  if (Array.isArray(query)) return [rowOf(...query)]
  return [first + view.prefix.indexOf(query)]
}

// The numbers of a map: of patches, and of the tokens before them.
function numbersOf(view, plane, query) {
  const patches = new Float64Array(view.patches)
  const prefix = new Float64Array(view.prefix.length)
  const rows = rowsOf(view, plane, query)
  for (const row of rows) {
    const step = (view.largest[row] - view.least[row]) / (view.levels - 1)
    for (let i = 0; i < patches.length; i += 1) {
      patches[i] += (view.least[row] + step * view.stored[row * patches.length + i]) / rows.length
    }
    for (let i = 0; i < prefix.length; i += 1) {
      prefix[i] += view.given[row * prefix.length + i] / rows.length
    }
  }
  return { patches, prefix }
}

function paint(canvas, view, colour) {
  const [rows, columns] = view.grid
  canvas.width = columns
  canvas.height = rows
  const picture = new ImageData(columns, rows)
  for (let i = 0; i < rows * columns; i += 1) picture.data.set([...colour(i), 255], 4 * i)
  canvas.getContext("2d").putImageData(picture, 0, 0)
}

// The bounds of the colours, of which a few patches at either end do not count.
function paintNumbers(canvas, view, patches) {
  const ordered = Float64Array.from(patches).sort()
  const cut = Math.floor(content.cut * ordered.length)
  let [least, largest] = [ordered[cut], ordered[ordered.length - 1 - cut]]
  if (least === largest) [least, largest] = [ordered[0], ordered[ordered.length - 1]]
  const scale = largest > least ? 255 / (largest - least) : 0
  paint(canvas, view, (i) => {
    const inside = Math.min(Math.max(patches[i], least), largest)
    const at = 3 * Math.round((inside - least) * scale)
    return palette.subarray(at, at + 3)
  })
  return [least, largest]
}

function drawHeads(view, query, what) {
  const { heads } = view.parts
  const several = { attention: view.heads, pooling: view.poolHeads }[what] || []
  heads.hidden = !state.grid || several.length < 2
  if (heads.hidden) return
  while (heads.children.length < several.length) {
    const cell = made("div", "", heads)
    made("canvas", "", cell)
    made("span", "", cell)
  }
  for (const [i, cell] of [...heads.children].entries()) {
    cell.hidden = i >= several.length
    if (cell.hidden) continue
    cell.lastChild.textContent = several[i] === "mean" ? "mean" : `head ${several[i]}`
    paintNumbers(cell.firstChild, view, numbersOf(view, chosen(view, query, i), query).patches)
  }
}

const short = (number) => Number(number.toPrecision(2)).toString()

function draw(view) {
  const query = queryOf(view)
  const plane = chosen(view, query)
  const { canvas, patch, caption } = view.parts
  canvas.style.opacity = state.hidden ? 0 : state.opacity
  let said = plane.words
  if (plane.what === "components") {
    paint(canvas, view, (i) => view.components.slice(3 * i, 3 * i + 3))
  } else {
    const { patches, prefix } = numbersOf(view, plane, query)
    const [least, largest] = paintNumbers(canvas, view, patches)
    const asked = Array.isArray(query) ? `patch ${query.join(", ")}` : query
    if (plane.rows > 1) said += `, seen from ${asked}`
    if (plane.side > 1 && Array.isArray(query)) {
      said += ` (mean of a square of ${plane.side} by ${plane.side})`
    }
    said += `: patches from ${short(least)} to ${short(largest)}`
    const others = view.prefix.map((name, i) => `${name} ${short(prefix[i])}`)
    if (others.length) said += `; ${others.join(", ")}`
    said += `; ${view.levels} levels`
  }
  caption.textContent = said
  drawHeads(view, query, plane.what)
  showPatch(patch, view, Array.isArray(query) && plane.rows !== 1 && plane.what !== "components" ? query : null)
}

function showPatch(patch, view, place) {
  patch.hidden = !place
  if (!place) return
  const [rows, columns] = view.grid
  patch.style.top = `${100 * place[0] / rows}%`
  patch.style.left = `${100 * place[1] / columns}%`
  patch.style.height = `${100 / rows}%`
  patch.style.width = `${100 / columns}%`
}

function made(tag, name, parent) {
  const found = document.createElement(tag)
  if (name) found.className = name
  parent.append(found)
  return found
}

function build(view) {
  const photograph = content.photographs[view.photograph]
  const figure = made("figure", "", element("views"))
  const frame = made("div", "frame", figure)
  const image = made("img", "", frame)
  image.src = photograph.picture
  image.alt = photograph.name
  image.style.imageRendering = photograph.width < 256 ? "pixelated" : "auto"
  const seen = made("div", "seen", frame)
  const [top, left, bottom, right] = view.box.map((share) => 100 * share)
  Object.assign(seen.style, {
    top: `${top}%`, left: `${left}%`, height: `${bottom - top}%`, width: `${right - left}%`,
  })
  const canvas = made("canvas", "", seen)
  const patch = made("div", "patch", seen)
  const words = made("figcaption", "", figure)
  const name = made("div", "name", words)
  name.textContent = [photograph.name, view.model].filter(Boolean).join(" · ")
  if (view.said) made("div", "classes", words).textContent = `predicted: ${view.said}`
  const caption = made("div", "said", words)
  const heads = made("div", "heads", figure)
  view.parts = { canvas, patch, caption, heads }
  const placeOf = (event) => {
    const box = frame.getBoundingClientRect()
    return {
      photograph: view.photograph,
      y: (event.clientY - box.top) / box.height,
      x: (event.clientX - box.left) / box.width,
    }
  }
  frame.addEventListener("pointermove", (event) => {
    hovered = placeOf(event)
    redraw()
  })
  frame.addEventListener("pointerleave", () => {
    hovered = null
    redraw()
  })
  frame.addEventListener("click", (event) => {
    const place = placeOf(event)
    if (patchAt(view, place)) pinned.set(view.photograph, place)
    redraw()
  })
}

function redraw() {
  const longest = (name) => content.views.map((view) => view[name])
    .reduce((a, b) => (b.length > a.length ? b : a))
  element("layer-name").textContent = longest("layers")[state.layer]
  element("head-name").textContent = heads()[state.head]
  for (const view of content.views) draw(view)
}

const heads = () => content.views.flatMap((view) => [view.heads, view.poolHeads])
  .reduce((a, b) => (b.length > a.length ? b : a))

function option(parent, value, words) {
  const found = made("option", "", parent)
  found.value = value
  found.textContent = words
}

// A control and the part of the state that it sets.
function bind(id, name, read) {
  element(id).addEventListener("input", (event) => {
    state[name] = read(event.target.value)
    redraw()
  })
}

function set(id, name, value) {
  const control = element(id)
  if (control.tagName === "SELECT" && ![...control.options].some((o) => o.value === value)) return
  control.value = value
  state[name] = control.type === "range" ? Number(control.value) : control.value
  redraw()
}

function setToken(value) {
  pinned.clear()
  hovered = null
  set("token", "token", value)
}

function setGrid(on) {
  state.grid = element("grid").checked = on
  redraw()
}

function fill() {
  const views = content.views
  for (const what of Object.keys(NAMES)) {
    if (views.some((view) => view.whats.has(what))) option(element("what"), what, NAMES[what])
  }
  const tokens = new Set(views.flatMap((view) => view.prefix))
  if (views.some((view) => view.poolHeads.length)) tokens.add("pooling")
  for (const token of [...tokens, "mean"]) {
    option(element("token"), token, token === "mean" ? "mean over patches" : token)
  }
  element("layer").max = Math.max(...views.map((view) => view.layers.length)) - 1
  element("head").max = heads().length - 1
  bind("what", "what", String)
  bind("layer", "layer", Number)
  bind("head", "head", Number)
  bind("opacity", "opacity", (value) => value / 100)
  element("token").addEventListener("input", (event) => setToken(event.target.value))
  element("grid").addEventListener("input", (event) => setGrid(event.target.checked))
  element("controls").addEventListener("submit", (event) => event.preventDefault())
}

// Another patch beside the one that was clicked, or beside the middle.
function step(rows, columns) {
  for (const view of content.views.filter((v, i, all) =>
    all.findIndex((other) => other.photograph === v.photograph) === i)) {
    const place = pinned.get(view.photograph)
    const [row, column] = (place && patchAt(view, place)) || view.grid.map((s) => Math.floor(s / 2))
    const clamp = (at, side) => Math.min(Math.max(at, 0), side - 1)
    const next = [clamp(row + rows, view.grid[0]), clamp(column + columns, view.grid[1])]
    pinned.set(view.photograph, centreOf(view, next))
  }
  hovered = null
  redraw()
}

const MOVES = {
  ArrowLeft: ["layer", -1], ArrowRight: ["layer", 1], ArrowDown: ["head", -1], ArrowUp: ["head", 1],
}
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key
  if (event.shiftKey && STEPS[key]) step(...STEPS[key])
  else if (MOVES[key]) set(MOVES[key][0], MOVES[key][0], state[MOVES[key][0]] + MOVES[key][1])
  else if (key === "r") set("what", "what", state.what === "rollout" ? "attention" : "rollout")
  else if (key === "c") setToken("class")
  else if (key === "m") setToken("mean")
  else if (key === "h") setGrid(!state.grid)
  else if (key === "Escape") { pinned.clear(); redraw() }
  else if (key === " ") { state.hidden = !state.hidden; redraw() }
  else return
  event.preventDefault()
}

async function start() {
  await Promise.all(content.views.map(unpack))
  fill()
  const scale = new ImageData(256, 1)
  for (let i = 0; i < 256; i += 1) scale.data.set([...palette.subarray(3 * i, 3 * i + 3), 255], 4 * i)
  element("scale").getContext("2d").putImageData(scale, 0, 0)
  content.views.forEach(build)
  const first = content.views[0].query
  if (!Array.isArray(first)) state.token = element("token").value = first
  set("layer", "layer", Number(element("layer").max))
  set("head", "head", 0)
  document.addEventListener("keydown", pressed)
  document.body.dataset.ready = "yes"
}

start()
