// Close a menu that covers the page, once another page is open; and make tabs and folds no steps of Back.
(function () {
  const menu = document.querySelector("[data-testid=stSidebar]");
  const close = document.querySelector("[data-testid=stSidebarCollapseButton] button");
  if (innerWidth < 768 && close && menu.getBoundingClientRect().left >= 0) close.click();
  if (history.keepsTabs) return;
  history.keepsTabs = true;
  const push = history.pushState;
  history.pushState = function (state, title, url) {
    const places = [location.href, new URL(url, location.href).href].map(function (place) {
      const address = new URL(place);
      for (const name of [...address.searchParams.keys()])
        if (name === "tab" || name.startsWith("show-")) address.searchParams.delete(name);
      return address.href;
    });
    (places[0] === places[1] ? history.replaceState : push).call(history, state, title, url);
  };
})();
