// Remember the page that somebody wanted, while this tab goes to the login and back.
sessionStorage.setItem("senseapp.place", location.pathname + location.search);
