// Show what the element of class "news" says in its data, where that is allowed and the page is out of sight.
(function () {
  const news = document.querySelector(".news");
  if (!news || !document.hidden || !("Notification" in window) || Notification.permission !== "granted") return;
  const shown = new Notification(news.dataset.title, { body: news.dataset.text, tag: news.dataset.tag });
  shown.onclick = function () { window.focus(); shown.close(); };
})();
