// Close a menu that covers the page, once another page is open; and make only pages, runs and checks steps of Back.
(function () {
  const menu = document.querySelector("[data-testid=stSidebar]");
  const close = document.querySelector("[data-testid=stSidebarCollapseButton] button");
  if (innerWidth < 768 && close && menu.getBoundingClientRect().left >= 0) close.click();
  if (history.keepsSettings) return;
  history.keepsSettings = true;
  const push = history.pushState;
  history.pushState = function (state, title, url) {
    const from = new URL(location.href), to = new URL(url, location.href);
    const [before, after] = [from, to].map(function (place) {
      return ["run", "check"].flatMap(function (name) { return place.searchParams.getAll(name); }).join();
    });
    const stays = from.pathname === to.pathname && (before === after || (!before && !to.searchParams.has("check")));
    (stays ? history.replaceState : push).call(history, state, title, url);
  };
})();
