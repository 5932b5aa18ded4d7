//! `serve --http` of each engine: figures that Prometheus takes, the report, the page, and what
//! clients get that ask for something else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use support::{Desk, Serving, qemu_io};

/// The answer to bytes: its head and its body.
fn answer(desk: &Desk, request: &[u8]) -> (String, String) {
    let text = try_answer(desk, request).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The answer as it comes. While connections that gave way are leaving, a newcomer may be sent away.
fn try_answer(desk: &Desk, request: &[u8]) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(desk.path("http.sock"))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    // A server that refuses a request may close before it has read all of it.
    let _ = stream.write_all(request);
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A page that is there.
#[track_caller]
fn page(desk: &Desk, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = answer(desk, request.as_bytes());
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body
}

/// Serves a store with figures at `http.sock`.
fn serve(desk: &Desk, arguments: &str) -> Serving {
    desk.serve(&format!("{arguments} --http unix:http.sock"))
}

/// The samples of a page of figures, which is checked strictly.
#[track_caller]
fn figures(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'));
    let mut samples = BTreeMap::new();
    let (mut family, mut kind, mut families) = ("", "", BTreeSet::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(families.insert(name) && help.ends_with('.'), "{line}");
            let of_type = lines.next().unwrap();
            let (typed, of_family) =
                of_type.strip_prefix("# TYPE ").unwrap().split_once(' ').unwrap();
            assert_eq!(typed, name);
            assert!(["counter", "gauge", "histogram", "summary"].contains(&of_family), "{of_type}");
            assert_eq!(name.ends_with("_total"), of_family == "counter", "{name}");
            assert!(lines.peek().is_some_and(|next| next.starts_with(name)), "{name} is empty");
            (family, kind) = (name, of_family);
            continue;
        }
        let (key, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let name = key.split('{').next().unwrap();
        let suffix = name.strip_prefix(family).unwrap();
        let suffixes: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            "summary" => &["_sum", "_count"],
            _ => &[""],
        };
        assert!(name.starts_with("onefold_") && suffixes.contains(&suffix), "{line}");
        assert!(value.is_finite() && value >= 0.0, "{line}");
        labels(key);
        assert!(samples.insert(key.to_owned(), value).is_none(), "{line} is there twice");
    }
    buckets_rise(text);
    samples
}

/// Labels are names with quoted values, in which quotes and backslashes are escaped.
#[track_caller]
fn labels(key: &str) {
    let Some((_, rest)) = key.split_once('{') else { return };
    let mut rest = rest.strip_suffix('}').unwrap();
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").unwrap();
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{key}");
        let mut escaped = false;
        let end = value.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        rest = &value[end.unwrap() + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// The buckets of a histogram never fall, and the last one is its count.
#[track_caller]
fn buckets_rise(text: &str) {
    let mut last = 0.0;
    for line in text.lines().filter(|line| line.starts_with("onefold_request_duration_seconds")) {
        let value: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        if line.contains("_count{") {
            assert!((value - last).abs() < 0.5, "{line}");
            last = 0.0;
        } else if line.contains("le=") {
            assert!(value >= last, "{line}");
            last = value;
        }
    }
}

/// Prometheus' own checker, where it is installed.
#[track_caller]
fn promtool(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        // Past the capture of tests that pass, which nobody sees.
        let note = "NOT TESTED: promtool (Debian's package prometheus) did not read the figures\n";
        let _ = std::io::stderr().write_all(note.as_bytes());
        return;
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The counters of `before` that are missing or lower in `after`.
fn fallen(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Vec<String> {
    let ends = ["_total", "_count", "_sum", "_bucket"];
    let is_counter = |key: &str| {
        let name = key.split('{').next().unwrap_or(key);
        ends.iter().any(|end| name.ends_with(end))
    };
    let counters = before.iter().filter(|(key, _)| is_counter(key));
    let fallen = counters.filter(|(key, value)| after.get(*key).is_none_or(|later| later < value));
    fallen.map(|(key, _)| key.clone()).collect()
}

/// Faults are planted in the figures of before and after a checkpoint, and are seen: a gauge that falls with
/// it and is declared a counter, each counter that begins again, and each that is gone.
#[track_caller]
fn sees_counters_that_fall(before: &str, after: &str) {
    let gauge = "onefold_uncommitted_records";
    let planted = |text: &str| {
        let counter = format!("{gauge}_total");
        let text = text.replace(gauge, &counter);
        figures(&text.replace(&format!("{counter} gauge"), &format!("{counter} counter")))
    };
    let before_it = planted(before);
    assert_eq!(fallen(&before_it, &planted(after)), [format!("{gauge}_total")]);
    let figures = figures(after);
    let mut counters = 0;
    for (key, value) in &figures {
        for planted in [Some(value / 2.0), None] {
            let mut faulty = figures.clone();
            faulty.remove(key);
            faulty.extend(planted.map(|lower| (key.clone(), lower)));
            let seen = fallen(&figures, &faulty);
            assert!(seen.is_empty() || seen == [key.clone()], "{seen:?}");
            counters += usize::from(!seen.is_empty());
        }
    }
    assert!(counters > 40, "{counters} faults of counters are seen");
}

#[test]
fn figures_of_a_block_store_count_and_never_fall() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    desk.ok("volume create a w --size 1M");
    let serving = serve(&desk, "a");
    let (v, w) = (desk.uri("a", "v"), desk.uri("a", "w"));
    qemu_io(&v, &["write -P 5 0 1M", "flush", "read 0 64k", "discard 512k 64k", "write -z 0 4k"]);
    qemu_io(&w, &["write -P 6 0 512k", "flush"]);
    let text = page(&desk, "/metrics");
    promtool(&text);
    let before = figures(&text);
    let of = |key: &str| before[&format!("onefold_{key}")];
    let is = |key: &str, value: u32| assert!((of(key) - f64::from(value)).abs() < 0.5, "{key}");
    is("client_written_bytes_total", (1 << 20) + (512 << 10));
    is("client_read_bytes_total", 64 << 10);
    is("request_duration_seconds_count{op=\"write\"}", 2);
    is("request_duration_seconds_count{op=\"trim\"}", 1);
    is("request_duration_seconds_count{op=\"write_zeroes\"}", 1);
    is("volume_size_bytes{volume=\"w\"}", 1 << 20);
    is("volume_written_bytes_total{volume=\"v\"}", 1 << 20);
    assert!(of("volume_writes_total{volume=\"w\"}") > 0.5);
    is("volume_read_bytes_total{volume=\"v\"}", 64 << 10);
    is("volume_reads_total{volume=\"w\"}", 0);
    is("volume_lost_bytes{volume=\"v\"}", 0);
    is("writes_stopped", 0);
    assert!(of("request_duration_seconds_count{op=\"flush\"}") > 1.5);
    assert!(of("request_duration_seconds_sum{op=\"write\"}") > 0.0);
    assert!(of("store_free_bytes") > 0.0 && of("uncommitted_records") > 0.0);
    // The volume goes, its connections are gone, and a checkpoint comes.
    desk.ok("volume delete a w");
    let (begun, count) = (Instant::now(), "onefold_checkpoint_duration_seconds_count");
    let (text_after, after) = loop {
        let text = page(&desk, "/metrics");
        let after = figures(&text);
        if after[count] > before[count] {
            break (text, after);
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint: {}", serving.log());
        std::thread::sleep(Duration::from_millis(100));
    };
    // Its own figures went with it.
    let of_gone = |line: &str| line.contains("volume=\"w\"");
    let left: String =
        text.lines().filter(|line| !of_gone(line)).flat_map(|line| [line, "\n"]).collect();
    assert_eq!(fallen(&figures(&left), &after), [""; 0]);
    sees_counters_that_fall(&left, &text_after);
    assert!(!after.contains_key("onefold_volume_size_bytes{volume=\"w\"}"));
    assert!(after["onefold_checkpoint_duration_seconds_sum"] > 0.0);
    // The report is that of the verb.
    let shown: Value = serde_json::from_str(&page(&desk, "/status.json")).unwrap();
    let told = desk.status("a");
    for key in ["engine", "id", "created", "volumes"] {
        assert_eq!(shown[key], told[key], "{key}");
    }
    assert_eq!(shown["server"]["nbd"]["written_bytes"], told["server"]["nbd"]["written_bytes"]);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&shown), keys(&told));
    assert!(serving.terminate().0.success());
    assert!(!desk.path("http.sock").exists());
}

#[test]
fn figures_of_an_archive_and_of_a_cluster_store() {
    let desk = Desk::new();
    for (create, engine, wanted) in [
        ("create archive ar", "archive", "onefold_volume_mapped_bytes{volume=\"v\"}"),
        ("create cluster po", "cluster", "onefold_store_used_bytes{kind=\"all\"}"),
    ] {
        desk.ok(create);
        let store = create.rsplit(' ').next().unwrap();
        desk.ok(&format!("volume create {store} v --size 1M"));
        let serving = serve(&desk, store);
        qemu_io(&desk.uri(store, "v"), &["write -P 5 0 128k", "flush", "read 0 64k"]);
        let begun = Instant::now();
        let (text, found) = loop {
            let text = page(&desk, "/metrics");
            let found = figures(&text);
            if found.contains_key(wanted) {
                break (text, found);
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{text}");
            std::thread::sleep(Duration::from_millis(50));
        };
        promtool(&text);
        let written = found["onefold_client_written_bytes_total"];
        assert!((written - f64::from(128 << 10)).abs() < 0.5, "{text}");
        assert!(text.contains(&format!("engine=\"{engine}\"")), "{text}");
        assert!(found.contains_key("onefold_volume_size_bytes{volume=\"v\"}"), "{text}");
        let report: Value = serde_json::from_str(&page(&desk, "/status.json")).unwrap();
        assert_eq!(report["engine"], engine);
        assert!(serving.terminate().0.success());
    }
}

#[test]
fn the_space_that_a_command_found_is_in_the_figures() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = serve(&desk, "a");
    desk.ok("snapshot create a v@1");
    desk.ok("snapshot clone a v@1 w");
    assert!(!page(&desk, "/metrics").contains("onefold_snapshots_held_bytes"));
    desk.ok("snapshot list a --space");
    let figures = page(&desk, "/metrics");
    for line in [
        "onefold_snapshots 1\n",
        "onefold_clones 1\n",
        "onefold_acts_waiting 0\n",
        "onefold_snapshots_held_bytes 0\n",
        "onefold_snapshot_exclusive_bytes{snapshot=\"v@1\"} 0\n",
        "onefold_deleted_maps_bytes{kind=\"leaving\"} 0\n",
    ] {
        assert!(figures.contains(line), "{line}{figures}");
    }
    assert!(serving.terminate().0.success());
}

#[test]
fn what_is_no_request_of_a_page_is_refused_and_harms_nobody() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = serve(&desk, "a");
    let long = format!("GET /{} HTTP/1.0\r\n\r\n", "x".repeat(9000));
    for (request, status) in [
        ("GET /nothing HTTP/1.0\r\n\r\n", "404 Not Found"),
        ("GET /../../etc/passwd HTTP/1.0\r\n\r\n", "404 Not Found"),
        ("GET /metrics HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("\x16\x03\x01\x02\r\n\r\n", "400 Bad Request"),
        ("NBDMAGICIHAVEOPT\r\n\r\n", "400 Bad Request"),
        ("POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
        ("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", "405 Method Not Allowed"),
        (&long, "431 Request Header Fields Too Large"),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403 Forbidden"),
    ] {
        let (head, _) = answer(&desk, request.as_bytes());
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request:?}: {head}");
        assert!(head.contains("\r\nContent-Security-Policy: default-src 'none'"), "{head}");
    }
    let (head, body) = answer(&desk, b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body.is_empty(), "{head}");
    assert!(head.contains("script-src 'sha256-") && head.contains("connect-src 'self'"), "{head}");
    // Clients that connect and say nothing, or a byte, keep nobody out.
    let silent: Vec<UnixStream> = (0..40)
        .map(|n| {
            let mut stream = UnixStream::connect(desk.path("http.sock")).unwrap();
            // The server may have cut the connection already.
            let _ = stream.write_all(if n % 2 == 0 { b"" } else { b"G" });
            stream
        })
        .collect();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let begun = Instant::now();
    while !try_answer(&desk, request).is_ok_and(|text| text.contains("onefold_build_info")) {
        assert!(begun.elapsed() < Duration::from_secs(20), "silent clients keep others out");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(silent);
    qemu_io(&desk.uri("a", "v"), &["write -P 5 0 64k", "flush", "read -P 5 0 64k"]);
    let (status, log) = serving.terminate();
    assert!(status.success() && !log.contains("panicked"), "{log}");
}
