//! The status of a store at work: whoever looks waits for no disk, and checkpoints are timed.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod slow;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use onefold_backend::MonotonicClock;
use onefold_block::{Settings, Store, StoreExports};
use onefold_core::Exports;
use slow::{End, PATIENCE, Slow};

#[test]
fn whoever_looks_waits_for_no_write_and_no_flush() {
    let disk = Slow::formatted();
    let clock = Arc::new(MonotonicClock::new());
    let store = Store::open(disk.clone(), clock, Settings::for_memory(32 << 20)).unwrap();
    thread::scope(|scope| {
        let _end = End(&disk, &store);
        scope.spawn(|| store.run_writer());
        scope.spawn(|| store.run_background());
        store.create_volume("v", 4 << 20).unwrap();
        let volume = StoreExports(store.clone()).open("v").unwrap();
        volume.write(0, &[7; 65_536]).unwrap();
        disk.close(true);
        let (flushed, flushing) = (volume.clone(), disk.clone());
        let flush = scope.spawn(move || flushed.flush());
        flushing.until_waiting();
        let (tell, heard) = mpsc::channel();
        let looked = store.clone();
        scope.spawn(move || drop(tell.send((looked.status(), looked.checkpoint_times()))));
        let seen = heard.recv_timeout(PATIENCE);
        disk.close(false);
        let (status, times) = seen.expect("a look waits for the disk");
        assert_eq!((status.volumes.len(), times.count), (1, 0));
        flush.join().unwrap().unwrap();
        // A checkpoint comes by itself when the store is quiet.
        let begun = Instant::now();
        while store.checkpoint_times().count == 0 {
            assert!(begun.elapsed() < PATIENCE, "no checkpoint is counted");
            thread::sleep(Duration::from_millis(10));
        }
        let times = store.checkpoint_times();
        assert!(times.sum > Duration::ZERO && times.count <= store.status().counts.checkpoints);
    });
}
