//! Streams on real files: what goes in comes out.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_archive::{
    Archive, Chunking, Compression, FilterName, Format, Gauge, PutReport as Report,
    PutRequest as Request, Settings, Shape, put,
};
use onefold_backend::Directory;
use onefold_core::{Algorithm, Kind, Result};
use support::noise;

struct Desk {
    dir: tempfile::TempDir,
    settings: Settings,
}

impl Desk {
    fn new(change: impl FnOnce(&mut Format, &mut Settings)) -> Desk {
        let dir = tempfile::Builder::new()
            .prefix("archive")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        format.reserve_bytes = 1 << 20;
        let mut settings = Settings::default();
        change(&mut format, &mut settings);
        Archive::create(&Directory::create(&dir.path().join("a")).unwrap(), &format).unwrap();
        Desk { dir, settings }
    }

    fn archive(&self) -> Arc<Archive> {
        let files = Directory::open(&self.dir.path().join("a"), true).unwrap();
        Arc::new(Archive::open(Arc::new(files), true, self.settings.clone()).unwrap())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Report {
        support::put(&self.archive(), name, bytes).unwrap()
    }

    fn get(&self, name: &str) -> Result<Vec<u8>> {
        support::get(&self.archive(), name)
    }
}

#[test]
fn what_goes_in_comes_out_and_a_second_version_costs_little() {
    for chunking in [Chunking::FastCdc(8192), Chunking::Rabin(8192), Chunking::Static(4096)] {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let desk = Desk::new(|format, _| {
                (format.chunking, format.compression) = (chunking, compression)
            });
            let mut one = noise(1, 12_000_000);
            one[3_000_000..3_300_000].fill(0);
            one[5_000_000..6_000_000].fill(b'a');
            one[8_000_000..9_000_000].copy_from_slice(&noise(1, 1_000_000));
            let first = desk.put("one", &one);
            assert!(desk.get("one").unwrap() == one, "{chunking}, {compression}");
            let mut two = one.clone();
            two[7_000_000..7_010_000].copy_from_slice(&noise(9, 10_000));
            let second = desk.put("two", &two);
            assert!(
                second.new_bytes < 200_000 && first.new_bytes > 9_000_000,
                "{chunking}: {first:?} {second:?}"
            );
            assert!(desk.get("two").unwrap() == two && desk.get("one").unwrap() == one);
            // The same name, other content.
            desk.put("one", b"short");
            assert_eq!(desk.get("one").unwrap(), b"short");
            assert_eq!(desk.get("three").unwrap_err().kind(), Kind::NotFound);
            desk.put("empty", b"");
            assert_eq!(desk.get("empty").unwrap(), b"");
        }
    }
}

#[test]
fn any_chain_finds_the_duplicates_and_small_indexes_spill() {
    use FilterName::{Bloom, ByteCompare, ChunkIndex, ContainerCache};
    for filters in [
        vec![ChunkIndex],
        vec![Bloom, ChunkIndex],
        vec![ContainerCache, Bloom, ChunkIndex],
        vec![Bloom, ContainerCache, ChunkIndex, ByteCompare],
    ] {
        let desk = Desk::new(|_, settings| {
            settings.filters = filters.clone();
            settings.auxiliary_entries = 100;
            settings.sync_bytes = 1 << 20;
            settings.container_bytes = 256 << 10;
            settings.log_bytes = 2 << 10;
        });
        let bytes = noise(5, 9_000_000);
        for n in 0..3u64 {
            let mut version = bytes.clone();
            version.splice(1_000_000..1_000_000, noise(100 + n, 50_000));
            let report = desk.put(&format!("v{n}"), &version);
            assert!(
                report.new_bytes < if n == 0 { 10_000_000 } else { 120_000 },
                "{filters:?} {n}: {report:?}"
            );
            assert!(desk.get(&format!("v{n}")).unwrap() == version);
        }
        let archive = desk.archive();
        let tables = archive.tables();
        assert!(!tables.index.files.is_empty(), "{filters:?}");
        assert!(archive.label().snapshot > 1);
    }
}

#[test]
fn each_entry_is_imported_once() {
    // Containers are listed and imported over and over while chunks are looked up.
    let desk = Desk::new(|format, settings| {
        (format.chunking, format.compression) = (Chunking::Static(1024), Compression::None);
        (settings.auxiliary_entries, settings.sync_bytes, settings.container_bytes) =
            (8 << 10, 1 << 20, 256 << 10);
    });
    let report = desk.put("a", &noise(4, 64 << 20));
    let entries: u64 = desk.archive().tables().index.files.iter().map(|file| file.entries).sum();
    assert!(
        report.counts.chunks == 64 << 10 && entries <= report.counts.chunks && entries > 32 << 10,
        "{entries} of {:?}",
        report.counts
    );
}

#[test]
fn merged_containers_are_counted_too_when_counts_are_lost() {
    use onefold_archive::{Collected, Collection, CollectionOptions as Options};
    let desk = Desk::new(|_, settings| {
        settings.container_bytes = 256 << 10;
        settings.count_slots = 50;
    });
    let base = noise(8, 2_000_000);
    for n in 0..4u64 {
        let mut version = base.clone();
        for part in 0..20 {
            let at = part * 100_000 + (n as usize) * 9_000;
            version[at..at + 8_000].copy_from_slice(&noise(1000 + n * 100 + part as u64, 8_000));
        }
        desk.put(&format!("v{n}"), &version);
    }
    let collect = || -> Collected {
        let options = Options { keep_partial: 86_400, ..support::options(5_000) };
        Collection::begin(&desk.archive(), options).unwrap().run(&mut |_| {}).unwrap()
    };
    for gone in 0..3 {
        desk.archive().remove(&format!("v{gone}")).unwrap();
        collect();
    }
    assert!(!desk.archive().tables().moved_to.is_empty(), "nothing was merged");
    let lost =
        |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("counts-");
    let counts: Vec<_> =
        std::fs::read_dir(desk.dir.path().join("a")).unwrap().flatten().filter(lost).collect();
    assert_eq!(counts.len(), 1);
    std::fs::remove_file(counts[0].path()).unwrap();
    collect();
    desk.archive().remove("v3").unwrap();
    collect();
    let tables = desk.archive().tables();
    assert_eq!((tables.sums().all().bytes, tables.moved_to.len()), (0, 0));
}

#[test]
fn what_was_removed_is_freed_and_the_rest_stays() {
    use onefold_archive::{Collected, Collection, CollectionOptions as Options};
    let desk = Desk::new(|_, settings| {
        settings.container_bytes = 256 << 10;
        settings.count_slots = 50;
    });
    let base = noise(5, 4_000_000);
    let versions: Vec<Vec<u8>> = (0..6u64)
        .map(|n| {
            let mut version = base.clone();
            for part in 0..40 {
                let at = part * 100_000 + (n as usize) * 7_000;
                version[at..at + 5_000]
                    .copy_from_slice(&noise(1000 + n * 100 + part as u64, 5_000));
            }
            version
        })
        .collect();
    for (n, version) in versions.iter().enumerate() {
        desk.put(&format!("v{n}"), version);
    }
    let collect = || -> Collected {
        let options = Options { keep_partial: 86_400, ..support::options(5_000) };
        Collection::begin(&desk.archive(), options).unwrap().run(&mut |_| {}).unwrap()
    };
    assert_eq!(collect(), Collected::default());
    let stored = desk.archive().tables().sums().all().bytes;
    for gone in [0usize, 2, 4, 1, 5] {
        desk.archive().remove(&format!("v{gone}")).unwrap();
        let done = collect();
        assert!(!done.waits && done.damaged == 0 && done.held_back == 0, "{done:?}");
        let archive = desk.archive();
        for stream in archive.tables().streams.keys() {
            let n: usize = stream[1..].parse().unwrap();
            assert!(desk.get(stream).unwrap() == versions[n], "{stream} after v{gone}");
        }
        assert!(
            archive.tables().condemned.is_empty()
                && archive.tables().waiting_to_be_freed.is_empty()
        );
        // Nothing is left to do.
        assert_eq!(collect(), Collected::default());
    }
    let tables = desk.archive().tables();
    assert!(
        tables.sums().all().bytes < stored * 7 / 10,
        "{} of {stored}",
        tables.sums().all().bytes
    );
    assert!(!tables.moved_to.is_empty());
    // Merged chunks are found as duplicates.
    let report = desk.put("again", &versions[3]);
    assert_eq!(report.new_bytes, 0);
    desk.archive().remove("v3").unwrap();
    desk.archive().remove("again").unwrap();
    collect();
    let tables = desk.archive().tables();
    assert_eq!((tables.sums().all().bytes, tables.moved_to.len()), (0, 0));
    assert!(tables.segments.len() <= 2);
}

#[test]
fn many_tiny_files_are_merged_into_containers_that_can_be_read() {
    use onefold_archive::Collection;
    let desk = Desk::new(|_, _| {});
    let files = |wanted: fn(u32) -> bool| {
        (0..36_000u32).filter(move |n| wanted(*n)).map(|n| format!("file {n:08}"))
    };
    let put = |name: &str, wanted: fn(u32) -> bool| {
        let request = Request {
            domain: None,
            name: name.into(),
            shape: Shape::Bytes,
            now: 1_000,
            wait: false,
        };
        let each = |feeder: &mut onefold_archive::Feeder<'_>| {
            files(wanted).try_for_each(|file| {
                feeder.border()?;
                feeder.bytes(file.as_bytes())
            })
        };
        put(&desk.archive(), request, &Gauge::default(), each).unwrap()
    };
    put("all", |_| true);
    assert_eq!(put("some", |n| n % 9 < 4).new_bytes, 0);
    desk.archive().remove("all").unwrap();
    let options = support::options(5_000);
    let done = Collection::begin(&desk.archive(), options).unwrap().run(&mut |_| {}).unwrap();
    assert!(done.merged > 3, "{done:?}");
    assert!(desk.get("some").unwrap() == files(|n| n % 9 < 4).collect::<String>().into_bytes());
}

#[test]
fn space_taken_ahead_goes_back() {
    use std::os::unix::fs::MetadataExt;
    let desk = Desk::new(|_, _| {});
    desk.put("a", &noise(9, 300_000));
    let segment = std::fs::metadata(desk.dir.path().join("a/segment-00000001")).unwrap();
    assert!(
        segment.blocks() * 512 < segment.len() + (1 << 20),
        "{} bytes take {}",
        segment.len(),
        segment.blocks() * 512
    );
}

#[test]
fn an_archive_fingerprints_by_the_algorithm_of_its_label_and_older_programs_refuse_it() {
    let one = noise(1, 3_000_000);
    for (algorithm, bits) in [(Algorithm::Blake3, None), (Algorithm::HmacSha256, Some(8u64))] {
        let desk = Desk::new(|format, _| format.fingerprint = algorithm);
        assert_eq!(desk.archive().label().fingerprint, algorithm);
        desk.put("one", &one);
        let again = desk.put("again", &one);
        assert_eq!((again.new_bytes, desk.get("again").unwrap() == one), (0, true), "{algorithm}");
        let label = std::fs::read(desk.dir.path().join("a/label")).unwrap();
        let field = |at: usize| u64::from_le_bytes(label[at..at + 8].try_into().unwrap());
        match bits {
            // Nothing but version 1, which all programs read.
            None => assert_eq!((label[8], label[86]), (1, 0)),
            Some(bits) => assert_eq!((label[8], label[86], field(136)), (3, 5, bits)),
        }
    }
    let weak = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let format = Format { fingerprint: Algorithm::Md5, ..Format::new([1; 16], [2; 32], [3; 16]) };
    let files = Directory::create(&weak.path().join("a")).unwrap();
    assert_eq!(Archive::create(&files, &format).unwrap_err().kind(), Kind::InvalidInput);
}
