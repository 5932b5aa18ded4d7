//! The page of `serve --http` in the browser: of stores that are used, empty, full and stopped, with
//! hostile names, of each engine, in wide and narrow windows, light and dark.
//!
//! First the page is opened as it is served, with its policy. Then a copy that has the same report
//! in it is looked at for texts that are cut off or overlap: the policy of the page itself lets no
//! other script look.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{browse, directory, found_in};
use crate::{
    cleanup::Scratch,
    nbd::{Client, REQUEST_BYTES},
    product::{Build, Onefold, Server, path},
    test::Tally,
};

/// Windows in which the page is looked at, the second as narrow as a phone's.
const WINDOWS: [(u32, u32); 2] = [(1280, 1100), (390, 1900)];

/// Looks at the copy.
const LOOK: &str = include_str!("served.js");

/// Names of volumes that are more than names in a page, or turn what stands beside them.
const HOSTILE: [&str; 5] = [
    "<img src=x onerror=alert(1)>",
    "</td><script>document.title='owned'</script>",
    "\"quoted\" & 'quoted' \\ {{7*7}}",
    "abc\u{202e}cba\u{2066}",
    "a-name-without-any-place-to-break-it-which-is-as-long-as-a-name-may-be-0123456789-0123456789-\
     0123456789-0123456789",
];

/// Longest that a store may take to stop, or a server to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A served store.
struct Site {
    server: Server,
    address: String,
}

/// A store to be looked at: its name, and what the page says of it.
struct Case {
    name: &'static str,
    says: &'static [&'static str],
}

/// Opens all of them.
pub(super) fn run(tally: &mut Tally) -> Result<()> {
    fs::create_dir_all(directory())?;
    let onefold = Onefold::build(Build::Test)?;
    let scratch = Scratch::new("page")?;
    let desk = Desk { onefold: &onefold, scratch: &scratch };
    let cases: [(Case, &dyn Fn() -> Result<Site>); 7] = [
        (Case { name: "used", says: &["Requests", "99 %", "vm1", "MiB"] }, &|| desk.used("block")),
        (Case { name: "empty", says: &["There are no volumes.", "No client"] }, &|| desk.empty()),
        (Case { name: "full", says: &["Free for new data", "vm1"] }, &|| desk.full()),
        (Case { name: "stopped", says: &["Reading only: ", "Idle work"] }, &|| desk.stopped()),
        (Case { name: "hostile", says: &["&lt;img src=x onerror", "\u{fffd}"] }, &|| {
            desk.hostile()
        }),
        (Case { name: "archive", says: &["Containers", "vm1"] }, &|| desk.used("archive")),
        (Case { name: "cluster", says: &["Objects to be", "vm1"] }, &|| desk.used("cluster")),
    ];
    for (case, open) in cases {
        let site = open()?;
        let problems = look(&case, &site.address)?;
        println!("the page of a store, {}: {} problems", case.name, problems.len());
        problems.iter().take(10).for_each(|problem| println!("    {problem}"));
        tally.passed += usize::from(problems.is_empty());
        tally.failed += usize::from(!problems.is_empty());
        site.server
            .stop()
            .or_else(|error| if case.name == "stopped" { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}

/// Opens the page in all windows, and tells what is wrong with it.
fn look(case: &Case, address: &str) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let (html, report) = (get(address, "/")?, get(address, "/status.json")?);
    let report: Value = serde_json::from_str(&report)?;
    for (width, height) in WINDOWS {
        for (theme, number) in [("light", 1), ("dark", 0)] {
            let picture = directory().join(format!("served.{}.{width}.{theme}.png", case.name));
            // What the policy kept from running or loading is said on standard error.
            let more = [
                format!("--blink-settings=preferredColorScheme={number}"),
                "--enable-logging=stderr".to_owned(),
            ];
            let url = format!("http://{address}/");
            let dom = browse(&url, (width, height), &picture, &more)?;
            problems.extend(wrong(case, &dom).into_iter().map(|what| format!("{width}: {what}")));
        }
        let (cards, found) = looked_at(&html, &report, case.name, (width, height))?;
        problems.extend(found.into_iter().map(|what| format!("{width}: {what}")));
        ensure!(cards >= 3, "the page of a store, {}, has {cards} cards", case.name);
    }
    if case.name == "hostile" {
        sees_faults(&html, &report)?;
    }
    Ok(problems)
}

/// What is seen in a copy of the page that has the report in it: the cards, and problems.
fn looked_at(
    html: &str,
    report: &Value,
    name: &str,
    window: (u32, u32),
) -> Result<(u64, Vec<String>)> {
    let copy = directory().join(format!("served.{name}.html"));
    let picture = copy.with_extension("copy.png");
    fs::write(&copy, with_report(html, report))?;
    let found = found_in(&browse(path(&copy), window, &picture, &[])?);
    fs::remove_file(&picture)?;
    fs::remove_file(&copy)?;
    found
}

/// Pages with faults are seen to have them: names that become elements, names that are never broken
/// into lines, and bytes without a unit.
fn sees_faults(html: &str, report: &Value) -> Result<()> {
    for (good, bad, fault) in [
        ("element.textContent = text", "element.innerHTML = text", "became an element"),
        ("white-space: normal; overflow-wrap: anywhere;", "", "beyond its card"),
        ("units[unit]}", "units[9]}", "is no figure"),
    ] {
        ensure!(html.contains(good), "the page does not have '{good}'");
        let (_, found) = looked_at(&html.replace(good, bad), report, "faults", WINDOWS[1])?;
        ensure!(found.iter().any(|problem| problem.contains(fault)), "not seen: {fault}");
    }
    Ok(())
}

/// What is wrong with the page as it was served.
fn wrong(case: &Case, dom: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for says in case.says {
        if !dom.contains(says) {
            problems.push(format!("it does not say '{says}'"));
        }
    }
    for never in ["<img", "owned</title>", "Refused to", "Content Security Policy", "Uncaught"] {
        if dom.contains(never) {
            problems.push(format!("it has '{never}'"));
        }
    }
    if dom.matches("<script>").count() != 1 {
        problems.push("it has more than its script".into());
    }
    problems
}

/// The page with its report inside, and with what looks at it.
fn with_report(html: &str, report: &Value) -> String {
    let report = report.to_string().replace('<', "\\u003c");
    let answers = format!(
        "<script>window.alert = () => {{}}; window.fetch = async () => ({{ ok: true, json: async () => ({report}) }});</script>"
    );
    html.replacen("<script>", &format!("{answers}<script>"), 1)
        .replace("</body>", &format!("<script>{LOOK}</script></body>"))
}

/// A page as it is served.
fn get(address: &str, page: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {page} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{page}: {head}\n{body}");
    Ok(body.to_owned())
}

/// Where stores are made and served.
struct Desk<'a> {
    onefold: &'a Onefold,
    scratch: &'a Scratch,
}

impl Desk<'_> {
    /// A store with volumes.
    fn made(&self, name: &str, engine: &str, volumes: &[&str]) -> Result<()> {
        let store = self.scratch.file(name);
        let mut create = vec!["create", engine, path(&store)];
        if engine == "block" {
            create.extend(["--size", "64M"]);
        }
        self.onefold.verb(create)?;
        for volume in volumes {
            // A name may begin with a hyphen.
            let create = ["volume", "create", path(&store), "--size", "256M", "--", volume];
            self.onefold.verb(create)?;
        }
        Ok(())
    }

    fn socket(&self, name: &str) -> std::path::PathBuf {
        self.scratch.file(&format!("{name}.sock"))
    }

    fn serve(&self, name: &str) -> Result<Site> {
        // The port is free now, and whoever takes it first meanwhile fails the test loudly.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let (store, listener) =
            (self.scratch.file(name), format!("unix:{}", self.socket(name).display()));
        let http = format!("tcp:{address}");
        let more = ["--http", http.as_str(), "--insecure", "--one-tenant"];
        let server = self.onefold.serve(&store, &[listener], &more)?;
        wait("the figures are not shown", || Ok(TcpStream::connect(&address).is_ok()))?;
        Ok(Site { server, address })
    }

    /// A store that a client uses.
    fn used(&self, engine: &str) -> Result<Site> {
        self.made(engine, engine, &["vm1", "vm2", "backup of the mail server"])?;
        let site = self.serve(engine)?;
        let mut client = Client::connect(&self.socket(engine), "vm1")?;
        let noise = noise(8 << 20)?;
        write(&mut client, &noise)?;
        write(&mut client, &noise[..4 << 20])?;
        client.flush()?;
        client.read_all(4 << 20, |_, _| Ok(()))?;
        client.trim([(0, 1 << 20)].into_iter())?;
        client.disconnect()?;
        wait("the report is not complete", || {
            let report: Value = serde_json::from_str(&get(&site.address, "/status.json")?)?;
            Ok(engine != "cluster" || report["served"].is_array())
        })?;
        Ok(site)
    }

    fn empty(&self) -> Result<Site> {
        self.made("empty", "block", &[])?;
        self.serve("empty")
    }

    /// A store that takes no more data because there is no space.
    fn full(&self) -> Result<Site> {
        self.made("full", "block", &["vm1"])?;
        let site = self.serve("full")?;
        let mut client = Client::connect(&self.socket("full"), "vm1")?;
        let noise = noise(128 << 20)?;
        let written = write(&mut client, &noise).and_then(|()| client.flush());
        ensure!(written.is_err(), "a store of 64 MiB took 128 MiB of noise");
        Ok(site)
    }

    /// A store whose file somebody removed: it takes no more writes.
    fn stopped(&self) -> Result<Site> {
        self.made("stopped", "block", &["vm1"])?;
        let site = self.serve("stopped")?;
        let mut client = Client::connect(&self.socket("stopped"), "vm1")?;
        let noise = noise(1 << 20)?;
        write(&mut client, &noise)?;
        client.flush()?;
        fs::remove_file(self.scratch.file("stopped"))?;
        wait("the store does not stop", || {
            // Refused, as soon as the store has noticed.
            let _ = write(&mut client, &noise).and_then(|()| client.flush());
            let report: Value = serde_json::from_str(&get(&site.address, "/status.json")?)?;
            Ok(report["stopped"].is_string())
        })?;
        Ok(site)
    }

    fn hostile(&self) -> Result<Site> {
        self.made("hostile", "block", &HOSTILE)?;
        self.serve("hostile")
    }
}

fn wait(what: &str, mut came: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !came()? {
        if begun.elapsed() > PATIENCE {
            bail!("{what}");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Bytes that can't be stored as duplicates.
fn noise(bytes: usize) -> Result<Vec<u8>> {
    let mut noise = vec![0; bytes];
    fs::File::open(Path::new("/dev/urandom"))?.read_exact(&mut noise)?;
    Ok(noise)
}

fn write(client: &mut Client, bytes: &[u8]) -> Result<()> {
    let pieces = bytes.chunks(REQUEST_BYTES).enumerate();
    client.write_all(pieces.map(|(n, piece)| ((n * REQUEST_BYTES) as u64, piece)))
}
