//! Front ends that do not wait: changes that are tried, and those of strong persistence, which become
//! durable together.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod slow;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Poll, Wake, Waker},
    thread,
};

use onefold_backend::MonotonicClock;
use onefold_block::{Persistence, Settings, Store, StoreExports};
use onefold_core::{Attempt, Block, BlockRead, Exports, Kind, Lba, Volume};
use slow::{End, PATIENCE, Slow};

fn served(settings: Settings, does: impl FnOnce(&Arc<Slow>, &Arc<Store>, &dyn Volume)) {
    let disk = Slow::formatted();
    let store = Store::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap();
    thread::scope(|scope| {
        let _end = End(&disk, &store);
        scope.spawn(|| store.run_writer());
        scope.spawn(|| store.run_background());
        store.create_volume("vm", 4 << 20).unwrap();
        let volume = StoreExports(store.clone()).open("vm").unwrap();
        does(&disk, &store, &*volume);
    });
}

fn read(volume: &dyn Volume, block: u64) -> Vec<u8> {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: Lba(block), into: &mut blocks, result: Ok(()) }];
    volume.read(&mut reads);
    let [read] = reads;
    read.result.unwrap();
    blocks[0].0.to_vec()
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn changes_of_a_strong_store_do_not_wait_for_each_other_and_become_durable_together() {
    let strong = Settings { persistence: Persistence::Strong, ..Settings::for_memory(32 << 20) };
    served(strong, |disk, store, volume| {
        assert!(volume.acknowledges_late());
        let before = store.engine().counts().windows;
        // Nothing becomes durable, and nobody waits.
        disk.close(true);
        let tickets: Vec<_> = (0..32u64)
            .map(|n| match n % 8 {
                6 => volume.trim(n * 4096, 4096).unwrap(),
                7 => volume.write_zeroes(n * 4096, 4096, true).unwrap(),
                _ => volume.write(n * 4096, &[n as u8 + 1; 4096]).unwrap(),
            })
            .collect();
        assert!(tickets.iter().all(|ticket| volume.durable().unwrap() < *ticket));
        assert_eq!(read(volume, 5), [6; 4096]);
        disk.close(false);
        for ticket in tickets {
            volume.wait(ticket).unwrap();
            assert!(volume.durable().unwrap() >= ticket);
        }
        let windows = store.engine().counts().windows - before;
        assert!(windows <= 4, "{windows} windows for 32 changes that came together");
    });
}

#[test]
fn a_change_without_room_is_pending_and_goes_on_where_it_stopped() {
    let settings =
        Settings { window_blocks: 32, unflushed_blocks: 64, ..Settings::for_memory(32 << 20) };
    served(settings, |disk, _, volume| {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        disk.close(true);
        let data: Vec<u8> = (0..200u64).flat_map(|n| [n as u8 + 1; 4096]).collect();
        let mut attempt = Attempt::default();
        assert!(volume.try_write(0, &data, &mut attempt).unwrap().is_pending());
        let taken = attempt.taken;
        assert!(taken > 0 && taken < data.len() as u64 && taken.is_multiple_of(4096), "{taken}");
        volume.on_progress(&waker);
        volume.on_progress(&waker);
        assert_eq!(woken.0.load(SeqCst), 0, "nothing goes on while the disk waits");
        disk.close(false);
        // What was taken is not looked at again.
        let rest = [vec![0xee; taken as usize], data[taken as usize..].to_vec()].concat();
        let mut tries = 0;
        let began = std::time::Instant::now();
        while volume.try_write(0, &rest, &mut attempt).unwrap().is_pending() {
            assert!(began.elapsed() < PATIENCE);
            let before = woken.0.load(SeqCst);
            volume.on_progress(&waker);
            tries += 1;
            while woken.0.load(SeqCst) == before && began.elapsed() < PATIENCE {
                thread::yield_now();
            }
        }
        assert!(woken.0.load(SeqCst) > 0 && tries > 0);
        for n in 0..200u64 {
            assert_eq!(read(volume, n), [n as u8 + 1; 4096], "block {n}");
        }
        assert_eq!(attempt.taken, data.len() as u64);
    });
}

#[test]
fn trims_and_zeroes_are_tried_too() {
    served(Settings::for_memory(32 << 20), |_, _, volume| {
        volume.write(0, &[7; 16_384]).unwrap();
        let trimmed = volume.try_trim(0, 4096, &mut Attempt::default()).unwrap();
        let zeroed = volume.try_zeroes(5000, 4096, false, &mut Attempt::default()).unwrap();
        for change in [trimmed, zeroed] {
            let Poll::Ready(ticket) = change else { panic!("there is room") };
            volume.wait(ticket).unwrap();
        }
        let mut expected = vec![7; 16_384];
        expected[..4096].fill(0);
        expected[5000..9096].fill(0);
        let found: Vec<u8> = (0..4).flat_map(|block| read(volume, block)).collect();
        assert!(found == expected);
        let beyond = volume.try_write(4 << 20, &[1], &mut Attempt::default()).unwrap_err();
        assert_eq!(beyond.kind(), Kind::InvalidInput);
    });
}
