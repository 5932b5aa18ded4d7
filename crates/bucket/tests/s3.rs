//! A store behind the protocol of S3. Runs where `ONEFOLD_S3` names a bucket, and the environment has its address
//! and credentials: `cargo xtask test s3` makes one.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_bucket::{Bucket, Objects, S3};
use onefold_core::{Files, Kind};
use support::{contract, noise, quick, settings, writer};

fn bucket() -> Option<String> {
    let name = std::env::var("ONEFOLD_S3").ok();
    if name.is_none() {
        println!("skipped: ONEFOLD_S3 names no bucket");
    }
    name
}

#[test]
fn s3_keeps_the_contract() {
    let Some(name) = bucket() else { return };
    for prefix in ["", "contract/below", "a~b/c d"] {
        let store: Arc<dyn Objects> = Arc::new(S3::open(&name, prefix).unwrap());
        contract::hold(&store);
    }
}

#[test]
fn files_in_s3_are_there_for_others() {
    let Some(name) = bucket() else { return };
    let store: Arc<dyn Objects> = Arc::new(S3::open(&name, "files").unwrap());
    let first = writer(&store, 1).unwrap();
    onefold_testbed::contract::files::hold(&first.files());
    let bytes = noise(1, 9 << 20);
    first.files().create("a").unwrap().write_at(3, &bytes).unwrap();
    first.leave().unwrap();
    let reader = Bucket::look(store.clone(), quick(2), settings("reader")).unwrap();
    let mut found = vec![0; bytes.len()];
    assert_eq!(reader.files().open("a").unwrap().read_at(3, &mut found).unwrap(), found.len());
    assert!(found == bytes);
    assert!(reader.differences().unwrap().is_empty());
}

#[test]
fn a_bucket_that_is_not_there_is_told() {
    if bucket().is_none() {
        return;
    }
    let store: Arc<dyn Objects> = Arc::new(S3::open("no-such-bucket-here", "x").unwrap());
    let error = Bucket::look(store, quick(1), settings("reader")).err().unwrap();
    assert_eq!(error.kind(), Kind::InvalidInput, "{error}");
    assert!(error.to_string().contains("there is no bucket of that name"), "{error}");
}
