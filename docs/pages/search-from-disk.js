// Browsers do not start workers for pages opened from disk, so the search runs in a frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const outside = this;
      this.inside.postMessage = (data) =>
        setTimeout(() => outside.dispatchEvent(new MessageEvent("message", { data })));
      this.inside.importScripts = () => Promise.resolve();
      this.loaded = new Promise((resolve) => {
        const script = frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = resolve;
        frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() =>
        this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })),
      );
    }

    terminate() {}
  };
}
