// Browsers start no worker for a page of the file system: run the worker of the search in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${url}"></script>`;
      this.inner = new Promise((resolve) => {
        frame.onload = () => {
          const answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          frame.contentWindow.postMessage = answer;
          resolve(frame.contentWindow);
        };
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.inner.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
