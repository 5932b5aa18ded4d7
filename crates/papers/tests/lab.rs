//! The laboratory's verbs: traces recorded from a served store, replayed, and workloads on a grid.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../cli/tests/support/mod.rs"]
mod support;

use std::{fs, path::Path, time::Duration};

use onefold_core::Lba;
use onefold_lab::trace::{Op, Reader, Record};
use support::{Desk, Serving, qemu_io};

fn trace(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../lab/data")
        .join(format!("{name}.dtrace.zst"))
        .to_str()
        .unwrap()
        .to_owned()
}

/// A recorder of the volume `v` of the store `a`, which is being served.
fn recorder(desk: &Desk) -> (Serving, String) {
    let from = desk.uri("a", "v");
    let mut command = desk.command(&format!(
        "record --from {from} --listen unix:{} --out t.dtrace.zst",
        desk.path("r.sock").display()
    ));
    (
        Serving::start_saying(&mut command, "recording into "),
        format!("nbd+unix:///v?socket={}", desk.path("r.sock").display()),
    )
}

fn read(path: &Path) -> (Vec<Op>, bool) {
    let mut reader = Reader::open(path).unwrap();
    let records: Vec<Record> = reader.by_ref().map(|record| record.unwrap()).collect();
    assert!(records.windows(2).all(|two| two[0].microseconds <= two[1].microseconds));
    (records.into_iter().map(|record| record.op).collect(), reader.was_cut())
}

#[test]
fn what_passes_through_the_recorder_is_in_the_trace_and_in_the_store() {
    let product = Desk::new();
    let desk = product.with("onefold-lab");
    product.store_with_volume("a");
    let serving = product.serve("a");
    let (recording, uri) = recorder(&desk);
    assert!(recording.log().contains(&uri), "{}", recording.log());
    let commands = [
        "write -P 0xab 0 8k",
        "flush",
        "write -P 0xab 64k 4k",
        "write -f -P 7 1M 4k",
        "discard 0 4k",
        "write -z 64k 4k",
        "write -P 3 512 512",
    ];
    qemu_io(&uri, &commands);
    qemu_io(
        &uri,
        &["read -P 0xab 4k 4k", "read -P 7 1M 4k", "read -P 0 64k 4k", "read -P 3 512 512"],
    );
    let (status, log) = recording.terminate();
    assert!(status.success() && log.contains("t.dtrace.zst holds "), "{log}");
    qemu_io(
        &desk.uri("a", "v"),
        &["read -P 0xab 4k 4k", "read -P 7 1M 4k", "read -P 0 64k 4k", "read -P 3 512 512"],
    );
    assert!(serving.terminate().0.success());

    let (ops, cut) = read(&desk.path("t.dtrace.zst"));
    assert!(!cut);
    let writes: Vec<(u64, [u8; 16], bool, bool)> = ops
        .iter()
        .filter_map(|op| match op {
            Op::Write { lba, hash, first, unaligned, lz4, .. } => {
                assert!(*lz4 < 100);
                Some((lba.0, *hash, *first, *unaligned))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        writes.iter().map(|write| (write.0, write.2, write.3)).collect::<Vec<_>>(),
        [
            (0, true, false),
            (1, false, false),
            (16, true, false),
            (256, true, false),
            (0, true, true)
        ]
    );
    assert!(
        writes[0].1 == writes[1].1
            && writes[0].1 == writes[2].1
            && writes[3].1 != writes[0].1
            && writes[4].1 != writes[0].1
    );
    assert_eq!(ops[2], Op::Flush);
    assert!(ops.contains(&Op::Trim { first: Lba(0), blocks: 1 }), "{ops:?}");
    assert!(
        ops.iter().any(|op| matches!(op, Op::Zeroes { first: Lba(16), blocks: 1, .. })),
        "{ops:?}"
    );
    let fua = ops.iter().any(|op| matches!(op, Op::Write { lba: Lba(256), fua: true, .. }));
    assert!(fua, "{ops:?}");

    let json: serde_json::Value =
        serde_json::from_str(&desk.ok("replay t.dtrace.zst --json")).unwrap();
    assert_eq!((json["client_blocks"].as_u64(), json["live_blocks"].as_u64()), (Some(5), Some(3)));
    desk.fails("record --from a.sock --listen unix:x.sock --out t.dtrace.zst", 1, &["a.sock"]);
    desk.fails("record --from nbd://a:b --listen unix:x.sock --out u", 2, &["is no NBD volume"]);
}

#[test]
fn a_recorder_that_is_killed_leaves_what_it_had() {
    let product = Desk::new();
    let desk = product.with("onefold-lab");
    product.store_with_volume("a");
    let serving = product.serve("a");
    let (recording, uri) = recorder(&desk);
    qemu_io(&uri, &["write -P 1 0 1M", "flush"]);
    let begun = std::time::Instant::now();
    while fs::metadata(desk.path("t.dtrace.zst")).unwrap().len() < 60 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    recording.kill();
    let (ops, cut) = read(&desk.path("t.dtrace.zst"));
    assert!(cut && ops.len() >= 256, "{}", ops.len());
    let text = desk.ok("replay t.dtrace.zst");
    assert!(text.contains("cut off"), "{text}");
    assert!(serving.terminate().0.success());
}

#[test]
fn a_server_that_goes_away_is_an_error_of_its_clients() {
    let product = Desk::new();
    let desk = product.with("onefold-lab");
    product.store_with_volume("a");
    let serving = product.serve("a");
    let (recording, uri) = recorder(&desk);
    qemu_io(&uri, &["write -P 1 0 4k"]);
    serving.kill();
    let said = support::try_qemu_io(&uri, &["write -P 2 0 4k"]);
    assert!(
        said.out.contains("error")
            || said.err.contains("error")
            || said.out.contains("failed")
            || said.err.contains("failed"),
        "{said:?}"
    );
    assert!(recording.terminate().0.success());
    assert_eq!(
        read(&desk.path("t.dtrace.zst"))
            .0
            .iter()
            .filter(|op| matches!(op, Op::Write { .. }))
            .count(),
        1
    );
}

#[test]
fn replays_print_one_object_whose_figures_belong_together() {
    let desk = Desk::new().with("onefold-lab");
    let keys = [
        "client_blocks",
        "device_blocks",
        "ideal_blocks",
        "metadata_blocks",
        "flushes",
        "windows",
        "duplicate_blocks",
        "hidden_records",
        "records",
        "checkpoint_blocks",
    ];
    for options in [
        "",
        "--persistence strong --device hdd-p --speed max",
        "--scheme original --device nvme-plp --clients open --speed x10",
    ] {
        let text = desk.ok(&format!("replay {} --records 4000 --json {options}", trace("pgbench")));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        keys.iter().for_each(|key| assert!(json[key].is_u64(), "{key}: {text}"));
        assert!(json["device"].is_string() && json["device_counts"]["data_blocks"].is_u64());
        assert!(json["virtual_seconds"].as_f64().unwrap() > 0.0);
        assert!(json["write_latency"].get("curve").is_none());
        assert!(json["verified_blocks"].as_u64() >= json["live_blocks"].as_u64());
    }
    let text = desk.ok(&format!("replay {} --records 4000 --json --curves", trace("srcver")));
    assert!(
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["flush_latency"]["curve"]
            .is_array()
    );
    let text = desk.ok(&format!("replay {} --records 4000", trace("srcver")));
    assert!(
        text.starts_with(
            "srcver.dtrace.zst on thin, persistence weak, device ssd-p, speed recorded\n"
        ),
        "{text}"
    );
    fs::write(desk.path("no"), "hello\n").unwrap();
    desk.fails("replay no", 1, &["trace no, line 1: nine words were expected"]);
    desk.fails("replay nowhere", 1, &["nowhere"]);
    desk.fails("replay no --device ssd", 2, &["no device 'ssd'"]);
    desk.fails("replay no --scheme fat", 2, &["no scheme 'fat'"]);
    desk.fails("replay no --speed fast", 2, &["a speed is"]);
    fs::write(desk.path("there"), "x").unwrap();
    desk.fails(&format!("replay {} --device real:there", trace("srcver")), 1, &["exists already"]);
    assert_eq!(fs::read(desk.path("there")).unwrap(), b"x");
}

#[test]
fn sweeps_run_all_combinations() {
    let desk = Desk::new().with("onefold-lab");
    let grid =
        "sweep --blocks 2000 --window 8,32 --dup 1,2 --device ssd-p,hdd-m --scheme thin,original";
    let points: serde_json::Value =
        serde_json::from_str(&desk.ok(&format!("{grid} --json"))).unwrap();
    let points = points.as_array().unwrap();
    assert_eq!(points.len(), 16);
    assert!(
        points
            .iter()
            .all(|point| point["client_blocks"] == 2000
                && point["throughput"].as_f64().unwrap() > 0.0)
    );
    assert!(
        points.iter().all(|point| point["write_latency"]["curve"].is_array()
            && point["workload"]["ratio"].is_f64())
    );
    let text = desk.ok("sweep --blocks 500 --workload mail-2,sequential --window 8");
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("16.08"), "{text}");
    desk.fails("sweep --dup 0.5", 2, &["a number from 1 to 1000"]);
    desk.fails("sweep --workload mail-3", 2, &["no workload 'mail-3'"]);
}

#[test]
fn pages_need_nothing_else() {
    let desk = Desk::new().with("onefold-lab");
    let schemes = "--scheme original,ideal,thin,ordered,cow --persistence weak,strong";
    let text = desk.ok(&format!(
        "replay {} --records 3000 {schemes} --report replay.html --json",
        trace("srcver")
    ));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&text).unwrap().as_array().unwrap().len(),
        10
    );
    desk.ok("sweep --blocks 1000 --window 8,32 --dup 1,4 --device hdd-p --scheme thin,ordered \
             --report sweep.html");
    for (page, plots) in [("replay.html", 4), ("sweep.html", 6)] {
        let html = fs::read_to_string(desk.path(page)).unwrap();
        assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
        assert!(
            !html.contains("src=")
                && !html.contains("<script")
                && !html.contains("@import")
                && !html.contains("url(")
        );
        assert!(
            html.matches("class=\"plot\"").count() >= plots,
            "{page}: {}",
            html.matches("class=\"plot\"").count()
        );
        assert!(!html.contains("NaN") && !html.contains("inf"), "{page}");
        for tag in ["svg", "figure", "table", "tr", "ul", "div"] {
            let opened = html.matches(&format!("<{tag} ")).count()
                + html.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{page}: {tag}");
        }
    }
    desk.fails(
        &format!("replay {} --records 10 --report no/where.html", trace("srcver")),
        1,
        &["no/where.html"],
    );
}

#[test]
fn a_papers_figure_is_measured_and_judged() {
    let desk = Desk::new().with("onefold-lab");
    let text = desk.ok(&format!(
        "paper thindedup --quick --only 5,setup --out figures --traces {}",
        trace("srcver")
    ));
    for part in [
        "Fig 5: latency, SSD: REPRODUCED, fitted device; 10,240 blocks",
        "Setup: LZ4: OUT OF SCOPE",
        "1 reproduced and 0 better, of 1 that were looked at, 1 out of scope; 4 runs",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(desk.path("figures/thindedup.json")).unwrap()).unwrap();
    let points = json["points"].as_array().unwrap();
    assert!(
        points
            .iter()
            .all(|point| point["throughput_with_checkpoints"].as_f64()
                <= point["throughput"].as_f64())
    );
    assert!(
        points.iter().all(|point| point["items"][0] == "5" && point["device_is_fitted"] == true)
    );
    let html = fs::read_to_string(desk.path("figures/report.html")).unwrap();
    assert!(
        html.contains("Fig 5: latency, SSD")
            && html.contains("fitted device")
            && html.contains("class=\"plot\"")
    );
    assert!(!html.contains("src=") && !html.contains("<script") && !html.contains("url("));
    let text = desk.ok("paper thindedup --quick --only text --out figures --json");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["statements"][0]["verdict"],
        "Reproduced"
    );
    desk.fails("paper thindedup --only 11", 2, &["'11'"]);
}

#[test]
fn stripes_by_reference_counts_are_replayed_and_their_reliability_is_told() {
    let desk = Desk::new().with("onefold-lab");
    let manifest = trace("x").replace("x.dtrace.zst", "rad/rocksdb.manifest.zst");
    let found = |more: &str| -> serde_json::Value {
        serde_json::from_str(&desk.ok(&format!("rad {manifest} --code 14,12 --json {more}")))
            .unwrap()
    };
    for (batch, least) in [(2, 0.2), (5, 0.9)] {
        let [robin, rad] = ["round-robin", "rad"]
            .map(|placement| found(&format!("--batch {batch} --placement {placement}")));
        let fewer = 1.0
            - rad["reencoded_chunks"].as_f64().unwrap()
                / robin["reencoded_chunks"].as_f64().unwrap();
        assert!(fewer >= least, "batches of {batch}: {fewer}");
        let deletions = rad["deletions"].as_array().unwrap();
        assert_eq!(deletions.len(), 5);
        for key in ["reencoded_chunks", "broken_stripes", "bytes_written"] {
            assert_eq!(
                rad[key],
                deletions.iter().map(|one| one[key].as_u64().unwrap()).sum::<u64>(),
                "{key}"
            );
        }
        assert!(
            rad["virtual_seconds"].as_f64() < robin["virtual_seconds"].as_f64()
                && rad["stripes"].as_u64() > Some(1000)
        );
    }
    assert!(desk.ok(&format!("rad {manifest} --delay 1")).contains("written for the upload"));
    desk.fails(&format!("rad {manifest} --code 14"), 2, &["N,K"]);
    desk.fails(&format!("rad {manifest} --code 14,14"), 1, &["14,14"]);
    desk.fails("rad no.manifest.zst", 1, &["no.manifest.zst"]);

    let json: serde_json::Value = serde_json::from_str(
        &desk.ok("reliability --codes 14,10,6 --codes 20,12,5 --alpha 0.2 --json"),
    )
    .unwrap();
    let tuple = &json["tuples"][0];
    assert_eq!(
        (&tuple["baseline_storage"], &tuple["physical_alpha_low"]),
        (&0.8.into(), &serde_json::Value::Null)
    );
    assert!(
        (tuple["baseline_mttdl_hours"].as_f64().unwrap() / 5.48e11 - 1.0).abs() < 0.005
            && tuple["storage"].as_f64() > Some(0.8)
    );
    assert!(
        (tuple["alpha_low"].as_f64().unwrap() - 0.118).abs() < 0.001
            && (tuple["alpha_high"].as_f64().unwrap() - 0.3).abs() < 1e-9
    );
    assert!(desk.ok("reliability --codes 14,10,6 --report page.html").contains("never both"));
    assert!(
        fs::read_to_string(desk.path("page.html")).unwrap().matches("class=\"plot\"").count() == 2
    );
    desk.fails("reliability --codes 14,10", 2, &["A,B,C"]);
    desk.fails("reliability --codes 6,10,14", 1, &["A > B > C"]);
}
