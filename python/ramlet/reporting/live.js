(() => {
  let known = null, gone = null;
  const look = async () => {
    try {
      const answer = await fetch("/", { headers: known ? { "If-None-Match": known } : {}, cache: "no-store" });
      if (gone) { gone.remove(); gone = null; }
      if (answer.status === 200) {
        const first = known === null;
        known = answer.headers.get("ETag");
        const text = await answer.text();
        if (!first || document.querySelector("main").dataset.made !== known) {
          const fresh = new DOMParser().parseFromString(text, "text/html"), main = document.querySelector("main");
          const open = new Map([...main.querySelectorAll("details[data-key]")].map((each) => [each.dataset.key, each.open]));
          const x = scrollX, y = scrollY;
          const next = fresh.querySelector("main");
          for (const each of next.querySelectorAll("details[data-key]"))
            if (open.has(each.dataset.key)) each.open = open.get(each.dataset.key);
          main.replaceChildren(...next.childNodes);
          document.title = fresh.title;
          window.ramletArrange();
          scrollTo(x, y);
        }
      }
    } catch (error) {
      if (!gone) {
        gone = document.createElement("div");
        gone.className = "gone";
        gone.textContent = "ramlet report has ended: this is the last page it made";
        document.body.append(gone);
      }
    }
    setTimeout(look, 2000);
  };
  setTimeout(look, 2000);
})();
