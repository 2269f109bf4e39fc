/* The search of the site runs in a Worker, which browsers refuse to a page that is opened from a disk (file:). There an
   iframe takes its place: it runs the same script, and messages go both ways. With a web server nothing is replaced. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== this.inner) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      const page = this.inner.document;
      this.ready = new Promise((resolve) => {
        page.open();
        this.inner.postMessage = undefined;
        this.inner.resolveWorker = resolve;
        page.write(
          "<script>var send = parent.postMessage.bind(parent); postMessage = (data) => send(data, '*');" +
            "importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise((resolve) => {" +
            "const script = document.createElement('script'); script.src = url; script.onload = resolve;" +
            "document.body.appendChild(script); })), Promise.resolve())</script><body>" +
            `<script src="${new URL(url, location)}" onload="resolveWorker()"></script></body>`
        );
        page.close();
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data, source: window })));
    }
    terminate() {
      this.inner.frameElement.remove();
    }
  };
}
