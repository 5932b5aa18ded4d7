//! What a reader of an archive shows is on the medium.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onefold_archive::{Archive, Format, Rule, Settings};
use onefold_testbed::{Rng, VirtualFiles, files::Layout};

/// A volume is created; its process is killed inside the call `crash`, a reader looks, and the
/// power fails: was it shown, and is it there?
fn shown_and_there(seed: u64, crash: u64, broken: Option<Rule>) -> (bool, bool) {
    let files = VirtualFiles::new(Layout::default(), Rng::new(seed));
    let open = |writes| {
        let settings = Settings { broken, ..Settings::default() };
        Archive::open(Arc::new(files.clone()), writes, settings).unwrap()
    };
    let has = |archive: &Archive| archive.tables().volumes.named("v").is_ok();
    Archive::create(&files, &Format { reserve_bytes: 0, ..Format::new([7; 16], [8; 32], [9; 16]) })
        .unwrap();
    let archive = open(true);
    files.arm_crash(crash);
    let _ = archive.create_volume("v", 4, 1_000);
    drop(archive);
    files.kill();
    let shown = has(&open(false));
    files.power_cycle();
    (shown, has(&open(true)))
}

fn vanished(broken: Option<Rule>) -> (u32, u32) {
    let (mut shown, mut vanished) = (0, 0);
    for (seed, crash) in (0..20).flat_map(|seed| (0..8).map(move |crash| (seed, crash))) {
        let (was_shown, is_there) = shown_and_there(seed, crash, broken);
        shown += u32::from(was_shown);
        vanished += u32::from(was_shown && !is_there);
    }
    (shown, vanished)
}

#[test]
fn rule_01_what_a_reader_showed_does_not_vanish_with_the_power() {
    let (shown, gone) = vanished(None);
    assert!(shown > 20 && gone == 0, "{gone} of {shown}");
    assert!(vanished(Some(Rule::TailDurableBeforeRead)).1 > 0);
}
