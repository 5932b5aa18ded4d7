//! Inputs that failed once: each file of `kept/` is named by its target and its story.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

#[test]
fn what_failed_once_does_not_fail_again() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/kept");
    let mut ran = 0;
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let target = name.split('-').next().unwrap_or_default();
        let target = onefold_fuzz::TARGETS
            .iter()
            .find(|known| known.name == target)
            .expect("the name of a target");
        println!("{name}");
        (target.body)(&std::fs::read(entry.path()).unwrap());
        ran += 1;
    }
    assert!(ran > 0);
}
