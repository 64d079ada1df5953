// Go to the page that was remembered, once.
(function () {
  const place = sessionStorage.getItem("senseapp.place");
  sessionStorage.removeItem("senseapp.place");
  if (place && place !== location.pathname + location.search) location.replace(location.origin + place);
})();
