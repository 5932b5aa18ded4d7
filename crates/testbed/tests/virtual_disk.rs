//! The virtual disk keeps the contract of `Disk`, and breaks it only when it is told to.

use std::sync::Arc;

use onefold_core::{Block, BlockRef, Class, Disk, Kind, Pba, Read, Run};
use onefold_testbed::{Fault, Rng, VirtualClock, VirtualDisk, contract};

fn disk() -> VirtualDisk {
    VirtualDisk::new(64, Arc::new(VirtualClock::default()), Rng::new(1))
}

#[test]
fn the_contract_of_disks_holds() {
    contract::disk::hold(|_| {
        let clock = Arc::new(VirtualClock::default());
        (VirtualDisk::new(contract::disk::CAPACITY, clock, Rng::new(1)), ())
    });
}

fn block(fill: u8) -> Block {
    Block([fill; 4096])
}

fn write(disk: &VirtualDisk, at: u64, fill: u8) -> onefold_core::Result<()> {
    disk.write(&[Run {
        at: Pba(at),
        blocks: &[BlockRef { block: &block(fill), class: Class::Data }],
    }])
}

fn write_durable(disk: &VirtualDisk, at: u64, fill: u8) -> onefold_core::Result<()> {
    disk.write_durable(&Run {
        at: Pba(at),
        blocks: &[BlockRef { block: &block(fill), class: Class::Data }],
    })
}

fn sectors(disk: &VirtualDisk, at: u64) -> onefold_core::Result<[u8; 8]> {
    let mut into = Block::zeroed_vec(1);
    let mut reads = [Read::new(Pba(at), &mut into)];
    disk.read(&mut reads);
    let [read] = reads;
    read.result?;
    Ok(std::array::from_fn(|sector| into[0].0[sector * 512]))
}

#[test]
fn a_crash_leaves_the_chosen_sectors_of_what_was_not_flushed() {
    let disk = disk();
    write(&disk, 1, 1).unwrap();
    disk.flush().unwrap();
    write(&disk, 1, 2).unwrap();
    write(&disk, 2, 3).unwrap();
    write(&disk, 1, 4).unwrap();
    assert_eq!(sectors(&disk, 1).unwrap(), [4; 8]);
    disk.power_cycle_with(&[0b0000_1111, 0, 0b0000_0001]);
    assert_eq!(sectors(&disk, 1).unwrap(), [4, 2, 2, 2, 1, 1, 1, 1]);
    assert_eq!(sectors(&disk, 2).unwrap(), [0; 8]);
}

#[test]
fn a_durable_write_makes_only_itself_durable() {
    let disk = disk();
    write(&disk, 1, 1).unwrap();
    write(&disk, 2, 1).unwrap();
    write_durable(&disk, 2, 2).unwrap();
    disk.power_cycle_with(&[]);
    assert_eq!((sectors(&disk, 1).unwrap(), sectors(&disk, 2).unwrap()), ([0; 8], [2; 8]));
}

#[test]
fn the_power_fails_inside_a_call_and_stays_off() {
    let disk = disk();
    disk.arm_crash(1);
    write(&disk, 1, 1).unwrap();
    assert!(write(&disk, 2, 2).is_err() && disk.is_down());
    assert!(disk.flush().is_err() && sectors(&disk, 1).is_err());
    assert_eq!(disk.unflushed().len(), 2);
    disk.power_cycle_with(&[0, 255]);
    assert_eq!((sectors(&disk, 1).unwrap(), sectors(&disk, 2).unwrap()), ([0; 8], [2; 8]));
}

#[test]
fn a_crash_inside_a_flush_promises_nothing() {
    let disk = disk();
    write(&disk, 1, 1).unwrap();
    disk.arm_crash(0);
    assert!(disk.flush().is_err());
    disk.power_cycle_with(&[0]);
    assert_eq!(sectors(&disk, 1).unwrap(), [0; 8]);
}

#[test]
fn what_a_failed_flush_lost_stays_lost_after_the_next_one() {
    let lost = (0..32).filter(|&seed| {
        let disk = VirtualDisk::new(64, Arc::new(VirtualClock::default()), Rng::new(seed));
        write(&disk, 1, 1).unwrap();
        disk.arm(Fault::FlushError, 0);
        assert!(disk.flush().is_err() && disk.has_failed());
        disk.flush().unwrap();
        assert_eq!(disk.calls_after_failure(), 1);
        disk.power_cycle_with(&[]);
        sectors(&disk, 1).unwrap() != [1; 8]
    });
    assert!(lost.count() > 5);
}

#[test]
fn a_killed_process_leaves_its_cache_to_the_next() {
    let disk = disk();
    write(&disk, 1, 1).unwrap();
    disk.kill();
    assert_eq!(sectors(&disk, 1).unwrap(), [1; 8]);
    disk.power_cycle_with(&[0]);
    assert_eq!(sectors(&disk, 1).unwrap(), [0; 8]);
}

#[test]
fn each_fault_happens_in_the_call_it_waits_for() {
    let disk = disk();
    write_durable(&disk, 1, 1).unwrap();
    disk.arm(Fault::ReadOnce, 0);
    assert!(sectors(&disk, 1).is_err() && sectors(&disk, 1).is_ok());
    disk.arm(Fault::ReadForGood, 0);
    assert!(sectors(&disk, 1).is_err() && sectors(&disk, 1).is_err());
    write_durable(&disk, 1, 2).unwrap();
    assert_eq!(sectors(&disk, 1).unwrap(), [2; 8]);
    disk.arm(Fault::LostWrite, 1);
    write_durable(&disk, 1, 3).unwrap();
    write_durable(&disk, 1, 4).unwrap();
    assert_eq!(sectors(&disk, 1).unwrap(), [3; 8]);
    disk.arm(Fault::MisdirectedWrite, 0);
    write_durable(&disk, 1, 5).unwrap();
    assert_eq!(sectors(&disk, 1).unwrap(), [3; 8]);
    assert!(
        (2..64).any(|at| sectors(&disk, at).unwrap() == [5; 8])
            || sectors(&disk, 0).unwrap() == [5; 8]
    );
    disk.arm(Fault::NoSpaceAllocate, 0);
    assert_eq!(disk.allocate(Pba(0), 1).map_err(|error| error.kind()), Err(Kind::NoSpace));
    disk.arm(Fault::WriteError, 0);
    assert_eq!(write(&disk, 9, 9).map_err(|error| error.kind()), Err(Kind::Io));
    assert_eq!(disk.damage(), 3);
}

#[test]
fn a_full_host_takes_only_what_has_its_space() {
    let disk = disk();
    disk.allocate(Pba(8), 8).unwrap();
    write(&disk, 1, 1).unwrap();
    disk.set_host_full(true);
    assert_eq!(write(&disk, 2, 2).map_err(|error| error.kind()), Err(Kind::NoSpace));
    write(&disk, 1, 2).unwrap();
    write(&disk, 15, 2).unwrap();
    assert!(disk.allocate(Pba(16), 1).is_err() && disk.allocate(Pba(8), 8).is_ok());
}

#[test]
fn misuse_is_noticed() {
    let disk = disk();
    assert_eq!(write(&disk, 64, 1).map_err(|error| error.kind()), Err(Kind::InvalidInput));
    let one = [BlockRef { block: &block(1), class: Class::Data }];
    disk.write(&[Run { at: Pba(3), blocks: &one }, Run { at: Pba(3), blocks: &one }]).unwrap();
    assert_eq!(disk.take_abuse().len(), 2);
}

#[test]
fn equal_calls_give_equal_traces() {
    let run = |fill: u8| {
        let disk = disk();
        write(&disk, 1, fill).unwrap();
        disk.flush().unwrap();
        disk.trace()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
