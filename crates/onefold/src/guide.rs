//! How to do what programs do with a store: each recipe runs as it stands.
//!
//! # Handle errors
//!
//! An error's kind says what the caller can do; its text is one sentence for a person.
//!
//! ```
//! use onefold::{ErrorKind, Store};
//!
//! let told = match Store::open("/srv/disk.onefold") {
//!     Ok(_) => "open".to_owned(),
//!     Err(error) => match error.kind() {
//!         ErrorKind::NotFound => "make one first".to_owned(),
//!         ErrorKind::Busy => format!("try again later: {error}"),
//!         _ => format!("call somebody: {error}"),
//!     },
//! };
//! assert_eq!(told, "make one first");
//! ```
//!
//! A store has one process, and one `Store` within it. A second open is the error `Busy`.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk");
//! # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
//! let store = onefold::Store::open(&path)?;
//! let second = onefold::Store::open(&path);
//! assert_eq!(second.err().map(|error| error.kind()), Some(onefold::ErrorKind::Busy));
//! store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Add what your program was doing to an error that you pass on.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("backups");
//! # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(&path)?;
//! let restored = store.get("monday", &mut Vec::new());
//! let error = restored.map_err(|error| error.context("restoring the database")).unwrap_err();
//! assert!(error.to_string().starts_with("restoring the database: "));
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! # Work with whichever engine made the store
//!
//! ```
//! use onefold::{Store, StoreKind};
//!
//! /// Keeps a report where the store can: as a stream, or at the start of a volume.
//! fn keep(store: &Store, report: &[u8]) -> onefold::Result<()> {
//!     match store.kind() {
//!         StoreKind::Archive | StoreKind::Cluster => store.put("report", &mut &*report).map(drop),
//!         _ => {
//!             store.create_volume("report", report.len() as u64)?;
//!             let volume = store.volume("report")?;
//!             volume.write_at(0, report)?;
//!             volume.flush()
//!         }
//!     }
//! }
//! # let folder = tempfile::tempdir().unwrap();
//! let (disk, backups) = (folder.path().join("disk"), folder.path().join("backups"));
//! onefold::create_block(&disk, &onefold::BlockFormat::of_bytes(64 << 20))?;
//! onefold::create_archive(&backups, &onefold::ArchiveFormat::default())?;
//! for path in [disk, backups] {
//!     let store = Store::open(path)?;
//!     keep(&store, b"all is well")?;
//!     store.close()?;
//! }
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Before a store is opened, [`locate`](crate::locate) tells what a path holds.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # onefold::create_cluster(folder.path().join("pool"))?;
//! # std::fs::write(folder.path().join("notes.txt"), "no store").unwrap();
//! let entries = std::fs::read_dir(folder.path()).unwrap().flatten();
//! let stores: Vec<_> = entries.filter(|entry| onefold::locate(entry.path()).is_ok()).collect();
//! assert_eq!(stores.len(), 1);
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! # Streams
//!
//! Keep a file, and write it back to another one.
//!
//! ```
//! use std::fs::File;
//!
//! # let folder = tempfile::tempdir()?;
//! # let at = |name: &str| folder.path().join(name);
//! # std::fs::write(at("notes.txt"), "to be kept")?;
//! # onefold::create_archive(at("backups"), &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(at("backups"))?;
//! store.put("notes", &mut File::open(at("notes.txt"))?)?;
//! store.get("notes", &mut File::create_new(at("restored.txt"))?)?;
//! assert_eq!(std::fs::read(at("restored.txt"))?, b"to be kept");
//! # store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Keep what another program prints, without a file between. Its end is the stream's end, so look
//! at its exit status before you trust the stream.
//!
//! ```
//! use std::process::{Command, Stdio};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("backups");
//! # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(&path)?;
//! let mut dump = Command::new("seq").arg("10000").stdout(Stdio::piped()).spawn()?;
//! store.put("dump", &mut dump.stdout.take().unwrap())?;
//! if !dump.wait()?.success() {
//!     store.remove("dump")?;
//! }
//! assert_eq!(store.streams()?[0].bytes, 48_894);
//! # store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Show how far a put or get is, and cancel it from another thread. The source or sink counts its
//! bytes, and gives an error when somebody cancels. A name keeps what it had before a cancelled
//! put; a cancelled get has written a part. `scrub` and `gc` show no progress, and run to their
//! end.
//!
//! ```
//! use std::{
//!     io::{self, Read, Write},
//!     sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
//!     thread,
//!     time::Duration,
//! };
//!
//! /// Progress of one stream, which several threads look at.
//! #[derive(Default)]
//! struct Progress {
//!     bytes: AtomicU64,
//!     cancelled: AtomicBool,
//! }
//!
//! impl Progress {
//!     fn count(&self, bytes: usize) -> io::Result<usize> {
//!         self.bytes.fetch_add(bytes as u64, Relaxed);
//!         match self.cancelled.load(Relaxed) {
//!             true => Err(io::Error::other("cancelled")),
//!             false => Ok(bytes),
//!         }
//!     }
//! }
//!
//! /// A source or sink whose bytes are counted.
//! struct Counted<'a, T>(T, &'a Progress);
//!
//! impl<T: Read> Read for Counted<'_, T> {
//!     fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
//!         self.0.read(into).and_then(|bytes| self.1.count(bytes))
//!     }
//! }
//!
//! impl<T: Write> Write for Counted<'_, T> {
//!     fn write(&mut self, from: &[u8]) -> io::Result<usize> {
//!         self.0.write(from).and_then(|bytes| self.1.count(bytes))
//!     }
//!
//!     fn flush(&mut self) -> io::Result<()> {
//!         self.0.flush()
//!     }
//! }
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("backups");
//! # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(&path)?;
//! let (putting, getting) = (Progress::default(), Progress::default());
//! thread::scope(|scope| {
//!     let put = scope.spawn(|| store.put("endless", &mut Counted(io::repeat(7), &putting)));
//!     while putting.bytes.load(Relaxed) < 1 << 20 {
//!         eprint!("\r{} KiB", putting.bytes.load(Relaxed) >> 10);
//!         thread::sleep(Duration::from_millis(10));
//!     }
//!     putting.cancelled.store(true, Relaxed);
//!     // Who cancelled knows it by the flag; the error has what the source said.
//!     let error = put.join().unwrap().unwrap_err();
//!     let said = std::error::Error::source(&error).map(ToString::to_string);
//!     assert_eq!(said.as_deref(), Some("cancelled"));
//! });
//! assert!(store.streams()?.is_empty());
//!
//! store.put("short", &mut &[7; 50_000][..])?;
//! store.get("short", &mut Counted(Vec::new(), &getting))?;
//! assert_eq!(getting.bytes.load(Relaxed), 50_000);
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Replace a stream by putting it again: the name stands for the old content until all of the new
//! one is durable, and no moment is without one of the two.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("backups");
//! # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(&path)?;
//! store.put("state", &mut &b"old"[..])?;
//! store.put("state", &mut &b"new"[..])?;
//! let mut found = Vec::new();
//! store.get("state", &mut found)?;
//! assert_eq!(found, b"new");
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Keep the newest versions, and give the space of older ones back. Names that sort by time make it
//! easy: streams are listed by name.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("backups");
//! # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(&path)?;
//! const KEPT: usize = 2;
//! for day in ["2026-11-21", "2026-11-22", "2026-11-23"] {
//!     store.put(day, &mut format!("the state of {day}").as_bytes())?;
//! }
//! let streams = store.streams()?;
//! for old in streams.iter().rev().skip(KEPT) {
//!     store.remove(&old.name)?;
//! }
//! store.gc()?;
//! assert_eq!(store.streams()?[0].name, "2026-11-22");
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Verify that one stream can be restored, without a place to restore it to.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("backups");
//! # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(&path)?;
//! # store.put("monday", &mut &[7; 50_000][..])?;
//! let bytes = store.get("monday", &mut std::io::sink())?;
//! assert_eq!(bytes, 50_000);
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Move streams to another store: a thread reads while this one puts.
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! # let at = |name: &str| folder.path().join(name);
//! # onefold::create_archive(at("old"), &onefold::ArchiveFormat::default())?;
//! # onefold::create_cluster(at("new"))?;
//! let (old, new) = (onefold::Store::open(at("old"))?, onefold::Store::open(at("new"))?);
//! # old.put("a", &mut &[7; 300_000][..])?;
//! for stream in old.streams()? {
//!     let (mut reader, mut writer) = std::io::pipe()?;
//!     std::thread::scope(|scope| {
//!         let reading = scope.spawn(|| {
//!             let read = old.get(&stream.name, &mut writer);
//!             drop(writer);
//!             read
//!         });
//!         let put = new.put(&stream.name, &mut reader);
//!         // Had the put failed, the thread would wait for a reader.
//!         drop(reader);
//!         reading.join().unwrap().and(put)
//!     })?;
//! }
//! assert_eq!(new.streams()?[0].bytes, 300_000);
//! # new.close()?;
//! # old.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Volumes
//!
//! Copy a disk image into a volume. Zeroes of a new volume need not be written.
//!
//! ```
//! use std::io::Read;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("disk");
//! # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
//! # let store = onefold::Store::open(&path)?;
//! # let mut image = std::io::repeat(7).take(3 << 20).chain(std::io::repeat(0).take(1 << 20));
//! store.create_volume("vm1", 4 << 20)?;
//! let volume = store.volume("vm1")?;
//! let (mut at, mut piece) = (0, vec![0; 1 << 20]);
//! while image.read_exact(&mut piece).is_ok() {
//!     if piece.iter().any(|byte| *byte != 0) {
//!         volume.write_at(at, &piece)?;
//!     }
//!     at += piece.len() as u64;
//! }
//! volume.flush()?;
//! # assert_eq!(at, 4 << 20);
//! drop(volume);
//! # store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Find out how much of a volume is written, and where.
//!
//! ```
//! use onefold::{Extent, ExtentKind, Volume};
//!
//! /// Offset and length of each range with data.
//! fn written(volume: &Volume) -> onefold::Result<Vec<(u64, u64)>> {
//!     let (mut at, mut found) = (0, Vec::new());
//!     while at < volume.size() {
//!         for Extent { bytes, kind } in volume.extents(at, volume.size() - at)? {
//!             if kind == ExtentKind::Data {
//!                 found.push((at, bytes));
//!             }
//!             at += bytes;
//!         }
//!     }
//!     Ok(found)
//! }
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk");
//! # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
//! # let store = onefold::Store::open(&path)?;
//! # store.create_volume("vm1", 1 << 30)?;
//! let volume = store.volume("vm1")?;
//! volume.write_at(1 << 20, &[7; 8192])?;
//! assert_eq!(written(&volume)?, [(1 << 20, 8192)]);
//! drop(volume);
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Read a volume with code that wants [`Read`](std::io::Read) and [`Seek`](std::io::Seek), such as
//! a parser of partition tables.
//!
//! ```
//! use std::io::{self, Read, Seek, SeekFrom};
//!
//! struct Cursor(onefold::Volume, u64);
//!
//! impl Read for Cursor {
//!     fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
//!         let left = self.0.size().saturating_sub(self.1);
//!         let bytes = into.len().min(left as usize);
//!         self.0.read_at(self.1, &mut into[..bytes]).map_err(io::Error::other)?;
//!         self.1 += bytes as u64;
//!         Ok(bytes)
//!     }
//! }
//!
//! impl Seek for Cursor {
//!     fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
//!         let at = match to {
//!             SeekFrom::Start(at) => Some(at),
//!             SeekFrom::Current(by) => self.1.checked_add_signed(by),
//!             SeekFrom::End(by) => self.0.size().checked_add_signed(by),
//!         };
//!         self.1 = at.ok_or(io::ErrorKind::InvalidInput)?;
//!         Ok(self.1)
//!     }
//! }
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("disk");
//! # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
//! # let store = onefold::Store::open(&path)?;
//! # store.create_volume("vm1", 1 << 20)?;
//! store.volume("vm1")?.write_at(510, &[0x55, 0xaa])?;
//! let mut cursor = Cursor(store.volume("vm1")?, 0);
//! let mut signature = [0; 2];
//! cursor.seek(SeekFrom::Start(510))?;
//! cursor.read_exact(&mut signature)?;
//! assert_eq!(signature, [0x55, 0xaa]);
//! # drop(cursor);
//! # store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Write from many threads. A volume is cloned for each; one flush covers the writes of all.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk");
//! # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
//! # let store = onefold::Store::open(&path)?;
//! # store.create_volume("vm1", 1 << 20)?;
//! let volume = store.volume("vm1")?;
//! let writers: Vec<_> = (0..4u8)
//!     .map(|n| {
//!         let volume = volume.clone();
//!         std::thread::spawn(move || volume.write_at(u64::from(n) * 4096, &[n; 4096]))
//!     })
//!     .collect();
//! for writer in writers {
//!     writer.join().unwrap()?;
//! }
//! volume.flush()?;
//! # let mut found = [0; 1];
//! # volume.read_at(3 * 4096, &mut found)?;
//! # assert_eq!(found, [3]);
//! drop(volume);
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Order writes by flushes, as a journal does. Flushed data is there after a crash; here the
//! store is dropped without being closed, which leaves it as a crash would.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk");
//! # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
//! # let store = onefold::Store::open(&path)?;
//! # store.create_volume("log", 1 << 20)?;
//! let volume = store.volume("log")?;
//! volume.write_at(4096, b"the entry")?;
//! volume.flush()?;
//! volume.write_at(0, b"entry 1 is whole")?;
//! volume.flush()?;
//! drop((volume, store));
//!
//! let store = onefold::Store::open(&path)?;
//! let mut entry = [0; 9];
//! store.volume("log")?.read_at(4096, &mut entry)?;
//! assert_eq!(&entry, b"the entry");
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Go on when a store is full: acknowledged data stays, and trimming makes room.
//!
//! ```
//! use onefold::ErrorKind;
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk");
//! # let small = onefold::BlockFormat::of_bytes(40 << 20);
//! # let small = onefold::BlockFormat { reserve: false, ..small };
//! # onefold::create_block(&path, &small)?;
//! # let store = onefold::Store::open(&path)?;
//! # store.create_volume("vm1", 1 << 30)?;
//! # let unique = |n: u64| -> Vec<u8> {
//! #     let mixed = |i: u64| (n << 17 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
//! #     (0..1 << 17).flat_map(|i| mixed(i).to_le_bytes()).collect()
//! # };
//! let volume = store.volume("vm1")?;
//! let full = (0..1000).find_map(|n| volume.write_at(n << 20, &unique(n)).err()).unwrap();
//! assert_eq!(full.kind(), ErrorKind::NoSpace);
//! volume.trim(0, volume.size())?;
//! volume.flush()?;
//! drop(volume);
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Back a volume up into an archive, as a stream. Its zeroes take no space there.
//!
//! ```
//! use std::io::{self, Read};
//!
//! /// Reads a volume from its beginning to its end.
//! struct Whole(onefold::Volume, u64);
//!
//! impl Read for Whole {
//!     fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
//!         let bytes = into.len().min((self.0.size() - self.1) as usize);
//!         self.0.read_at(self.1, &mut into[..bytes]).map_err(io::Error::other)?;
//!         self.1 += bytes as u64;
//!         Ok(bytes)
//!     }
//! }
//! # let folder = tempfile::tempdir().unwrap();
//! # let at = |name: &str| folder.path().join(name);
//! # onefold::create_block(at("disk"), &onefold::BlockFormat::of_bytes(64 << 20))?;
//! # onefold::create_archive(at("backups"), &onefold::ArchiveFormat::default())?;
//! let (disk, backups) = (onefold::Store::open(at("disk"))?, onefold::Store::open(at("backups"))?);
//! # disk.create_volume("vm1", 8 << 20)?;
//! # disk.volume("vm1")?.write_at(0, &[7; 100_000])?;
//! backups.put("vm1, monday", &mut Whole(disk.volume("vm1")?, 0))?;
//! let again = backups.put("vm1, tuesday", &mut Whole(disk.volume("vm1")?, 0))?;
//! assert_eq!((again.bytes, again.new_bytes), (8 << 20, Some(0)));
//! # disk.close()?;
//! # backups.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! # Serving
//!
//! Serve a store to other programs while this one works on it: volumes that are made now are there
//! for the next client.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk");
//! # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
//! let store = onefold::Store::open(&path)?;
//! let socket = folder.path().join("nbd.sock");
//! let server = store.serve(&socket)?;
//! store.create_volume("vm7", 1 << 30)?;
//! let uri = format!("nbd+unix:///vm7?socket={}", socket.display());
//! // Start the guest with `uri` as its disk; when it has ended:
//! # drop(uri);
//! server.stop()?;
//! store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! # Care
//!
//! Scrub now and then, and tell somebody what is damaged. The command `onefold repair` puts back
//! what is stored elsewhere.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("backups");
//! # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(&path)?;
//! # store.put("monday", &mut &[7; 50_000][..])?;
//! let findings = store.scrub()?;
//! if !findings.is_well() {
//!     eprintln!("{} problems: {}", findings.found, findings.problems.join("; "));
//! }
//! # assert!(findings.is_well());
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
//!
//! Show what deduplication saves.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("backups");
//! # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! # let store = onefold::Store::open(&path)?;
//! # store.put("monday", &mut &[7; 50_000][..])?;
//! # store.put("tuesday", &mut &[7; 50_000][..])?;
//! let usage = store.usage()?;
//! let times = usage.content_bytes as f64 / usage.stored_bytes.max(1) as f64;
//! println!("{times:.1} times less than without deduplication");
//! # assert!(times > 2.0);
//! # store.close()?;
//! # Ok::<(), onefold::Error>(())
//! ```
