// A page opened from a file may start no worker, and the search is one. Then a hidden frame does its work.
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super()
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    document.body.appendChild(this.frame)
    this.frame.srcdoc = `<script>
      postMessage = data => parent.postMessage(data, "*")
      importScripts = (...urls) => urls.reduce((done, u) => done.then(() => new Promise(next => {
        const s = document.createElement("script"); s.src = u; s.onload = next; document.body.appendChild(s) })), Promise.resolve())
    <\/script><body><script src="${url}"><\/script>`
    this.ready = new Promise(next => this.frame.onload = next)
    addEventListener("message", e => {
      if (e.source !== this.frame.contentWindow) return
      const message = new MessageEvent("message", {data: e.data})
      this.dispatchEvent(message)
      if (this.onmessage) this.onmessage(message)
    })
  }
  postMessage(data) { this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}))) }
  terminate() { this.frame.remove() }
}
