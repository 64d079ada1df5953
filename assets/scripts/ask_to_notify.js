// Ask whether this site may show notifications; browsers allow that for some seconds after a click.
if ("Notification" in window && Notification.permission === "default") Notification.requestPermission();
