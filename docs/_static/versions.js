// Fills the switch between versions. Each version is published in a folder of its own, and
// versions.json lies beside these folders. Pages in a wheel or on a disk have no such file, and
// show no switch.

async function offerVersions() {
  const root = new URL(document.documentElement.dataset.content_root, document.location);
  const versions = await (await fetch(new URL("../versions.json", root))).json();
  const label = document.getElementById("versions");
  const select = label.querySelector("select");
  const shown = select.dataset.version;
  for (const version of versions) {
    select.add(new Option(version, version, version === shown, version === shown));
  }
  const page = document.location.pathname.slice(root.pathname.length);
  select.addEventListener("change", async () => {
    const other = new URL(`../${select.value}/`, root);
    const same = new URL(page, other);
    const isThere = (await fetch(same, { method: "HEAD" })).ok;
    document.location = isThere ? same : other;
  });
  label.hidden = false;
}

window.addEventListener("DOMContentLoaded", () => offerVersions().catch(() => {}));
