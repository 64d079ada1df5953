// Scroll the frame that the element of class "reveal" names in its data until that place can be seen.
(function look(tries) {
  const wish = document.querySelector(".reveal");
  const frame = wish && document.querySelector(".st-key-" + wish.dataset.frame);
  if (!frame || frame.scrollHeight < frame.clientHeight + 20) {
    if (tries) setTimeout(look, 150, tries - 1);
    return;
  }
  const place = wish.dataset.place * frame.scrollHeight, margin = 60;
  if (place < frame.scrollTop + margin || place > frame.scrollTop + frame.clientHeight - margin)
    frame.scrollTo({ top: place - frame.clientHeight / 2 });
})(30);
