(() => {
  let known = "", gone = null;
  const swap = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const main = document.querySelector("main"), next = fresh.querySelector("main");
    const open = new Map([...main.querySelectorAll("details[data-key]")].map((each) => [each.dataset.key, each.open]));
    for (const each of next.querySelectorAll("details[data-key]"))
      if (open.has(each.dataset.key)) each.open = open.get(each.dataset.key);
    const x = scrollX, y = scrollY;
    main.replaceChildren(...next.childNodes);
    document.title = fresh.title;
    window.ramletArrange();
    scrollTo(x, y);
  };
  const look = async () => {
    try {
      const answer = await fetch("/", { headers: known ? { "If-None-Match": known } : {}, cache: "no-store" });
      if (gone) { gone.remove(); gone = null; }
      if (answer.status === 200) {
        known = answer.headers.get("ETag");
        swap(await answer.text());
      }
    } catch (error) {
      if (!gone) {
        gone = document.createElement("div");
        gone.className = "gone";
        gone.textContent = "ramlet report has stopped: this is its last page";
        document.body.append(gone);
      }
    }
    setTimeout(look, 2000);
  };
  setTimeout(look, 2000);
})();
