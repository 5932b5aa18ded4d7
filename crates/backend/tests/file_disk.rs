//! Tests of `FileDisk` beyond the contract of every disk: locks, creation, space, damage from
//! outside, messages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use onefold_backend::{Access, FileDisk, Io, Options, Preallocate, device_bytes, peek};
use onefold_core::{Block, Class, Disk, Kind, Pba, Read, Run};
use onefold_testbed::contract::disk::{assert_same, block, blocks, read, refs, write};
use support::Scratch;

fn create(path: &Path, blocks: u64, preallocate: Preallocate) -> onefold_core::Result<FileDisk> {
    FileDisk::create(path, Some(blocks), preallocate, &mut |_, _| {})
}

fn taken_bytes(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[track_caller]
fn refused(result: onefold_core::Result<FileDisk>, kind: Kind, says: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn a_store_that_is_open_for_writing_is_refused_to_everybody_else() {
    let file = Scratch::new("locked-by-writer");
    let disk = create(file.path(), 4, Preallocate::None).unwrap();
    let message = format!("store {} is in use by", file.path().display());
    refused(FileDisk::open(file.path(), Access::ReadWrite), Kind::Busy, &message);
    refused(FileDisk::open(file.path(), Access::ReadOnly), Kind::Busy, &message);
    refused(create(file.path(), 4, Preallocate::None), Kind::Busy, &message);
    drop(disk);
    drop(FileDisk::open(file.path(), Access::ReadWrite).unwrap());
    FileDisk::open(file.path(), Access::ReadWrite).unwrap();
}

#[test]
fn readers_share_a_store_and_keep_writers_out() {
    let file = Scratch::new("locked-by-readers");
    drop(create(file.path(), 4, Preallocate::None).unwrap());
    let readers = [
        FileDisk::open(file.path(), Access::ReadOnly).unwrap(),
        FileDisk::open(file.path(), Access::ReadOnly).unwrap(),
    ];
    refused(FileDisk::open(file.path(), Access::ReadWrite), Kind::Busy, "is in use by");
    drop(readers);
    FileDisk::open(file.path(), Access::ReadWrite).unwrap();
}

#[test]
fn a_disk_open_for_reading_refuses_changes() {
    let file = Scratch::new("read-only");
    let disk = create(file.path(), 4, Preallocate::None).unwrap();
    write(&disk, 1, &[block(1)]).unwrap();
    drop(disk);
    let disk = FileDisk::open(file.path(), Access::ReadOnly).unwrap();
    let pool = blocks(9, 1);
    let run = Run { at: Pba(0), blocks: &refs(&pool, Class::Data) };
    assert_eq!(disk.write(&[run]).unwrap_err().kind(), Kind::Denied);
    assert_eq!(disk.write_durable(&run).unwrap_err().kind(), Kind::Denied);
    assert_eq!(disk.allocate(Pba(0), 1).unwrap_err().kind(), Kind::Denied);
    disk.flush().unwrap();
    assert_same(&read(&disk, 1, 1).unwrap(), &[block(1)]);
    assert_eq!(disk.access(), Access::ReadOnly);
}

#[test]
fn content_survives_closing() {
    let file = Scratch::new("reopened");
    let disk = create(file.path(), 64, Preallocate::Reserve).unwrap();
    write(&disk, 3, &blocks(3, 40)).unwrap();
    disk.flush().unwrap();
    drop(disk);
    for (io, direct) in [(Io::Uring, true), (Io::Syscalls, false)] {
        let disk = Options { io, direct }.open(file.path(), Access::ReadWrite).unwrap();
        assert_eq!((disk.blocks(), disk.is_device(), disk.uring()), (64, false, io == Io::Uring));
        assert!(direct || !disk.direct());
        assert_same(&read(&disk, 3, 40).unwrap(), &blocks(3, 40));
    }
}

#[test]
fn a_file_that_is_not_empty_is_never_overwritten() {
    let file = Scratch::new("precious");
    fs::write(file.path(), "precious").unwrap();
    refused(create(file.path(), 4, Preallocate::Full), Kind::Exists, "exists and is not empty");
    assert_eq!(fs::read(file.path()).unwrap(), b"precious");
}

#[test]
fn a_new_file_is_private_and_an_empty_one_is_taken_when_it_is_private() {
    let new = Scratch::new("private");
    create(new.path(), 4, Preallocate::None).unwrap();
    assert_eq!(fs::metadata(new.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let empty = Scratch::new("empty-taken");
    fs::write(empty.path(), "").unwrap();
    fs::set_permissions(empty.path(), fs::Permissions::from_mode(0o604)).unwrap();
    refused(create(empty.path(), 4, Preallocate::None), Kind::Denied, "open to other users");
    fs::set_permissions(empty.path(), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(create(empty.path(), 4, Preallocate::None).unwrap().blocks(), 4);
}

#[test]
fn preallocation_takes_the_space_that_it_promises() {
    const BYTES: u64 = 2000 * 4096;
    let (none, reserve, full) =
        (Scratch::new("none"), Scratch::new("reserve"), Scratch::new("full"));
    let disk = create(none.path(), 2000, Preallocate::None).unwrap();
    assert!(taken_bytes(none.path()) < BYTES / 10);
    disk.allocate(Pba(0), 1000).unwrap();
    assert!(taken_bytes(none.path()) >= BYTES / 2 && taken_bytes(none.path()) < BYTES);
    create(reserve.path(), 2000, Preallocate::Reserve).unwrap();
    assert!(taken_bytes(reserve.path()) >= BYTES);
    let mut steps = Vec::new();
    FileDisk::create(full.path(), Some(2000), Preallocate::Full, &mut |done, total| {
        steps.push((done, total))
    })
    .unwrap();
    assert!(taken_bytes(full.path()) >= BYTES);
    assert_eq!(steps, [(0, BYTES), (1024 * 4096, BYTES), (BYTES, BYTES)]);
}

#[test]
fn sizes_that_cannot_be_are_refused_and_leave_nothing_behind() {
    let file = Scratch::new("impossible");
    for (blocks, kind) in [
        (0, Kind::InvalidInput),
        (u64::MAX, Kind::InvalidInput),
        (1 << 52, Kind::InvalidInput),
        // 4 EiB, beyond what any file system here has.
        (1 << 50, Kind::NoSpace),
    ] {
        for preallocate in [Preallocate::Reserve, Preallocate::Full] {
            assert_eq!(
                create(file.path(), blocks, preallocate).unwrap_err().kind(),
                kind,
                "{blocks} blocks"
            );
            assert!(!file.path().exists());
        }
    }
    refused(
        FileDisk::create(file.path(), None, Preallocate::None, &mut |_, _| {}),
        Kind::InvalidInput,
        "needs a size",
    );
    fs::write(file.path(), "").unwrap();
    assert!(create(file.path(), 1 << 50, Preallocate::Reserve).is_err());
    assert_eq!(fs::metadata(file.path()).unwrap().len(), 0);
}

#[test]
fn a_file_gets_longer_while_it_is_open_or_stays_as_it_was() {
    let file = Scratch::new("longer");
    let disk = create(file.path(), 16, Preallocate::Reserve).unwrap();
    assert!(write(&disk, 60, &blocks(1, 4)).is_err());
    assert_eq!(disk.extend(Pba(16), Some(64), true).unwrap(), 64);
    assert!(taken_bytes(file.path()) >= 64 * 4096);
    write(&disk, 60, &blocks(1, 4)).unwrap();
    disk.flush().unwrap();
    // 1 PiB, beyond what any file system here has.
    let full = disk.extend(Pba(64), Some(1 << 38), true).unwrap_err();
    assert_eq!(full.kind(), Kind::NoSpace, "{full}");
    assert_eq!((disk.blocks(), fs::metadata(file.path()).unwrap().len()), (64, 64 * 4096));
    assert_eq!(disk.extend(Pba(64), Some(1000), false).unwrap(), 1000);
    assert!(taken_bytes(file.path()) < 1000 * 4096, "nothing was reserved");
    // Somebody else makes it longer, and cuts it off.
    let other = File::options().write(true).open(file.path()).unwrap();
    other.set_len(2000 * 4096 + 9).unwrap();
    assert_eq!(disk.extend(Pba(1000), None, false).unwrap(), 2000);
    assert_eq!(disk.extend(Pba(1000), Some(4), false).unwrap(), 2000, "it never gets shorter");
    assert_same(&read(&disk, 60, 4).unwrap(), &blocks(1, 4));
    disk.flush().unwrap();
    other.set_len(1500 * 4096).unwrap();
    assert!(disk.flush().is_err(), "what was added is looked after as well");
}

#[test]
fn a_full_host_answers_allocation_with_no_space() {
    // A memory file system refuses what is larger than itself at once, and takes nothing.
    let directory = Path::new("/dev/shm");
    let stat = rustix::fs::statvfs(directory).unwrap();
    let path = directory.join(format!("onefold-no-space-{}", std::process::id()));
    let blocks = stat.f_blocks * stat.f_frsize / 4096 + 1000;
    let disk = create(&path, blocks, Preallocate::None);
    let outcome = disk.as_ref().map(|disk| {
        let all = disk.allocate(Pba(0), blocks).map_err(|e| e.kind());
        let few = disk.allocate(Pba(0), 4).map_err(|e| e.kind());
        (all, few)
    });
    fs::remove_file(&path).unwrap();
    assert_eq!(outcome.unwrap(), (Err(Kind::NoSpace), Ok(())));
}

#[test]
fn a_file_cut_off_under_an_open_disk_gives_errors_for_what_is_gone() {
    for (io, direct) in
        [(Io::Uring, true), (Io::Uring, false), (Io::Syscalls, true), (Io::Syscalls, false)]
    {
        let file = Scratch::new(&format!("cut-{io:?}-{direct}"));
        let disk = Options { io, direct }
            .create(file.path(), Some(64), Preallocate::Reserve, &mut |_, _| {})
            .unwrap();
        write(&disk, 0, &blocks(0, 64)).unwrap();
        disk.flush().unwrap();
        // Block 10 is cut in two.
        File::options().write(true).open(file.path()).unwrap().set_len(10 * 4096 + 1000).unwrap();
        for gone in [10, 11, 63] {
            let error = read(&disk, gone, 1).unwrap_err();
            assert_eq!(error.kind(), Kind::Io);
            assert!(error.to_string().contains("it has 10 blocks"), "{error}");
        }
        let mut into = Block::zeroed_vec(16);
        let mut reads: Vec<_> = into
            .chunks_mut(4)
            .zip([0, 4, 8, 40])
            .map(|(into, at)| Read::new(Pba(at), into))
            .collect();
        disk.read(&mut reads);
        let ok: Vec<bool> = reads.iter().map(|r| r.result.is_ok()).collect();
        assert_eq!(ok, [true, true, false, false]);
        assert_same(&into[..8], &blocks(0, 8));
    }
}

#[test]
fn a_size_between_blocks_is_rounded_down() {
    let file = Scratch::new("odd-size");
    fs::write(file.path(), vec![7; 3 * 4096 + 4095]).unwrap();
    let disk = FileDisk::open(file.path(), Access::ReadWrite).unwrap();
    assert_eq!(disk.blocks(), 3);
    assert_eq!(read(&disk, 2, 1).unwrap()[0].0, [7; 4096]);
    assert_eq!(device_bytes(file.path()).unwrap(), 3 * 4096 + 4095);
}

#[test]
fn what_cannot_be_a_store_is_refused_in_one_sentence() {
    let file = Scratch::new("short");
    for access in [Access::ReadWrite, Access::ReadOnly] {
        refused(FileDisk::open(file.path(), access), Kind::NotFound, "there is nothing at");
        refused(FileDisk::open(Path::new("/"), access), Kind::InvalidInput, "is a directory");
        refused(
            FileDisk::open(Path::new("/dev/null"), access),
            Kind::InvalidInput,
            "neither a regular file nor a block device",
        );
        refused(
            FileDisk::open(Path::new("/dev/null/x"), access),
            Kind::NotFound,
            "there is nothing at",
        );
    }
    refused(
        create(Path::new("/dev/null"), 4, Preallocate::None),
        Kind::InvalidInput,
        "neither a regular file",
    );
    refused(
        create(&file.path().join("x/y"), 4, Preallocate::None),
        Kind::NotFound,
        "there is no directory",
    );
    fs::write(file.path(), vec![0; 4095]).unwrap();
    refused(
        FileDisk::open(file.path(), Access::ReadOnly),
        Kind::InvalidInput,
        "less than one block",
    );
    fs::remove_file(file.path()).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        file.path(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    refused(
        FileDisk::open(file.path(), Access::ReadOnly),
        Kind::InvalidInput,
        "neither a regular file",
    );
}

#[test]
fn a_file_of_somebody_else_is_denied() {
    let file = Scratch::new("denied");
    drop(create(file.path(), 4, Preallocate::None).unwrap());
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o000)).unwrap();
    let path = file.path().to_owned();
    let attempt = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            // Permissions do not bind root; this thread alone becomes somebody else.
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        refused(FileDisk::open(&path, Access::ReadWrite), Kind::Denied, "no permission to open");
        refused(FileDisk::open(&path, Access::ReadOnly), Kind::Denied, "for reading");
        refused(create(&path, 4, Preallocate::None), Kind::Denied, "no permission");
    });
    attempt.join().unwrap();
}

#[test]
#[ignore = "needs root and a free loop device: cargo xtask test device runs it"]
fn a_block_device_is_used_whole_and_claimed() {
    let backing = Scratch::new("loop-backing");
    File::create(backing.path()).unwrap().set_len((64 << 20) + 512).unwrap();
    let losetup = |arguments: &[&str]| {
        let output = std::process::Command::new("losetup").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let device = losetup(&["--find", "--show", backing.path().to_str().unwrap()]);
    let path = Path::new(&device);
    let outcome = std::panic::catch_unwind(|| {
        assert_eq!(device_bytes(path).unwrap(), (64 << 20) + 512);
        refused(
            create(path, (64 << 8) + 1, Preallocate::None),
            Kind::InvalidInput,
            "has 16384 blocks",
        );
        assert_eq!(create(path, 100, Preallocate::None).unwrap().blocks(), 100);
        let disk = FileDisk::create(path, None, Preallocate::Full, &mut |_, _| {}).unwrap();
        assert_eq!((disk.blocks(), disk.is_device(), disk.direct()), (64 << 8, true, true));
        disk.allocate(Pba(0), disk.blocks()).unwrap();
        write(&disk, (64 << 8) - 2, &blocks(1, 2)).unwrap();
        disk.write_durable(&Run { at: Pba(0), blocks: &refs(&blocks(5, 3), Class::Super) })
            .unwrap();
        disk.flush().unwrap();
        refused(FileDisk::open(path, Access::ReadWrite), Kind::Busy, "in use by another program");
        refused(FileDisk::open(path, Access::ReadOnly), Kind::Busy, "in use by");
        drop(disk);
        let disk = FileDisk::open(path, Access::ReadOnly).unwrap();
        assert_same(&read(&disk, (64 << 8) - 2, 2).unwrap(), &blocks(1, 2));
        assert_same(&read(&disk, 0, 3).unwrap(), &blocks(5, 3));
        drop(disk);
        let disk = FileDisk::open(path, Access::ReadWrite).unwrap();
        let small = disk.extend(Pba(64 << 8), Some(65 << 8), true).unwrap_err();
        assert!(small.to_string().contains("make the device larger first"), "{small}");
        File::options().write(true).open(backing.path()).unwrap().set_len(96 << 20).unwrap();
        losetup(&["--set-capacity", &device]);
        assert_eq!(disk.extend(Pba(64 << 8), None, true).unwrap(), 96 << 8);
        write(&disk, (96 << 8) - 1, &blocks(9, 1)).unwrap();
        disk.flush().unwrap();
    });
    losetup(&["--detach", &device]);
    outcome.unwrap();
}

#[test]
fn counters_tell_requests_and_blocks_by_class() {
    let file = Scratch::new("counted");
    let disk = create(file.path(), 64, Preallocate::None).unwrap();
    let start = disk.counters().now();
    let pool = blocks(0, 5);
    let (data, table) = (refs(&pool, Class::Data), refs(&pool, Class::Table));
    disk.write(&[Run { at: Pba(0), blocks: &data[..3] }, Run { at: Pba(9), blocks: &table }])
        .unwrap();
    disk.write_durable(&Run { at: Pba(20), blocks: &refs(&pool[..1], Class::Super) }).unwrap();
    disk.flush().unwrap();
    read(&disk, 0, 7).unwrap();
    let counts = disk.counters().now().since(&start);
    assert_eq!(
        (counts.reads, counts.blocks_read, counts.writes, counts.durable_writes, counts.flushes),
        (1, 7, 3, 1, 1)
    );
    let classes = [Class::Data, Class::Carrier, Class::Table, Class::Super]
        .map(|class| counts.written(class));
    assert_eq!(classes, [3, 0, 5, 1]);
    assert_eq!(counts.blocks_written(), 9);
}

#[test]
fn a_block_can_be_seen_while_somebody_has_the_disk() {
    let scratch = Scratch::new("peek");
    let disk = create(scratch.path(), 8, Preallocate::None).unwrap();
    write(&disk, 3, &blocks(3, 1)).unwrap();
    assert_same(&[*peek(scratch.path(), Pba(3)).unwrap().unwrap()], &blocks(3, 1));
    assert!(peek(scratch.path(), Pba(8)).unwrap().is_none());
    assert!(peek(scratch.path(), Pba(u64::MAX)).unwrap().is_none());
    assert_eq!(peek(Path::new("/nowhere/at/all"), Pba(0)).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(peek(Path::new("/tmp"), Pba(0)).unwrap_err().kind(), Kind::InvalidInput);
}
