//! A server's answers to the verbs that reach it through the control socket.

use std::{
    collections::BTreeMap,
    fs::Metadata,
    io::{BufReader, Read, Write},
    os::unix::fs::MetadataExt,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_backend::{process, random::random_bytes};
use onefold_block::{Copies, Store};
use onefold_console::size::Size;
use onefold_core::{Error, Kind, Result};
use onefold_serve::nbd;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use super::options::Options;
use crate::{
    report::{
        HeldSpace, Index, Memory, Nbd, PageCache, Reads, Report, Server, Snapshots, Witness, Writes,
    },
    verbs::{
        copied, grow, replicate, scrub,
        volume::{self, guard},
    },
};
use onefold::parts::{
    control::{
        ReceiveLine, Request, Served, SnapshotLine, SnapshotSpace, Tell, VolumeLine, VolumeSpace,
        stream,
    },
    store_file::{StoreFile, WorkingStore},
    witness::Teller,
};

/// How long a walk through snapshots waits after each piece of its work, as a multiple of that: it
/// has a tenth of the disk's time at most.
const PAUSE: u32 = 9;

/// The longest of these waits.
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// The space that only snapshots hold, and when it was found; commands and pages have one.
pub(super) type FoundSpace = Arc<Mutex<Option<(Instant, SnapshotSpace)>>>;

/// A served store, as commands see it.
pub(super) struct Commands {
    /// As it was when the server started.
    file: StoreFile,
    store: Arc<Store>,
    /// Who tells the witness, if there is one.
    teller: Option<Arc<Teller>>,
    /// Gone while the server stops.
    server: Arc<Mutex<Option<nbd::Server>>>,
    listeners: Vec<String>,
    memory: u64,
    persistence: String,
    begun: Instant,
    /// The space that only snapshots hold, when somebody asked for it last.
    space: FoundSpace,
}

impl Commands {
    pub(super) fn new(
        file: StoreFile,
        options: &Options,
        working: &WorkingStore,
        server: Arc<Mutex<Option<nbd::Server>>>,
        listeners: &[String],
        space: FoundSpace,
    ) -> Commands {
        Commands {
            file: file.at_absolute_path(),
            store: working.store().clone(),
            teller: working.teller().cloned(),
            server,
            listeners: listeners.to_vec(),
            memory: options.memory.0,
            persistence: format!("{:?}", options.persistence).to_lowercase(),
            begun: Instant::now(),
            space,
        }
    }

    /// Looks through the snapshots, with a tenth of the time at most, until `tell` fails.
    fn snapshot_space(&self, tell: &mut Tell<'_>) -> Result<SnapshotSpace> {
        let mut given_up = None;
        let found = SnapshotSpace::of(self.store.engine(), &mut |worked| {
            std::thread::sleep((worked * PAUSE).min(PAUSE_MOST));
            given_up = tell("looking through the snapshots", 0, 0).err();
            given_up.is_none()
        });
        let Some(found) = found else {
            let ended = || Error::new(Kind::Io, "nobody waits for the answer any more");
            return Err(given_up.unwrap_or_else(ended));
        };
        *self.space.lock() = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    /// Looks through the maps of all volumes, likewise.
    fn volume_space(&self, tell: &mut Tell<'_>) -> Result<VolumeSpace> {
        let mut given_up = None;
        let found = VolumeSpace::of(self.store.engine(), &mut |worked| {
            std::thread::sleep((worked * PAUSE).min(PAUSE_MOST));
            given_up = tell("looking through the volumes", 0, 0).err();
            given_up.is_none()
        });
        found.ok_or_else(|| {
            let ended = || Error::new(Kind::Io, "nobody waits for the answer any more");
            given_up.unwrap_or_else(ended)
        })
    }

    /// The snapshots for a report, with the space that was found last.
    fn snapshots(&self) -> Snapshots {
        let mut lines = SnapshotLine::all(self.store.engine());
        let Some((then, space)) = self.space.lock().clone() else {
            return Snapshots::new(lines, None);
        };
        let known: BTreeMap<(&str, u64), Option<u64>> = space
            .snapshots
            .iter()
            .map(|line| ((line.name.as_str(), line.created_ms), line.exclusive_bytes))
            .collect();
        for line in &mut lines {
            let found = known.get(&(line.name.as_str(), line.created_ms));
            line.exclusive_bytes = found.copied().flatten();
        }
        let held = HeldSpace {
            age_seconds: then.elapsed().as_secs(),
            snapshot_bytes: lines.iter().filter_map(|line| line.exclusive_bytes).sum(),
            leaving_bytes: space.leaving_bytes,
            orphan_bytes: space.orphan_bytes,
        };
        Snapshots::new(lines, Some(held))
    }

    /// The store at this moment, and its file as it is now.
    fn report(&self) -> Result<Report> {
        // Somebody may have moved it meanwhile, which does not disturb the server.
        let looked = StoreFile::look(self.file.path())
            .ok()
            .filter(|file| file.control_name() == self.file.control_name());
        self.report_on(looked.as_ref().unwrap_or(&self.file))
    }

    /// The same without reading the file, which could wait for the disk.
    pub(super) fn report_at_once(&self) -> Result<Value> {
        let mut report = self.report_on(&self.file)?;
        let found = std::fs::metadata(self.file.path()).ok().filter(Metadata::is_file);
        report.space.host_bytes = found.map(|found| found.blocks() * 512);
        json(&report)
    }

    fn report_on(&self, file: &StoreFile) -> Result<Report> {
        let status = self.store.status();
        let statistics =
            self.server.lock().as_ref().map(nbd::Server::statistics).unwrap_or_default();
        let memory = process::memory()?;
        let server = Server {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.begun.elapsed().as_secs(),
            persistence: self.persistence.clone(),
            listeners: self.listeners.clone(),
            memory: Memory {
                limit_bytes: self.memory,
                engine_bytes: status.memory_bytes,
                resident_bytes: memory.resident_bytes,
                peak_bytes: memory.peak_bytes,
            },
            writes: Writes::from(&status.counts),
            checkpoints: self.store.checkpoint_times().into(),
            reads: Reads { client_blocks: status.counts.read_blocks },
            index: Index::from(&status),
            page_cache: PageCache::from(&status),
            witness: self.teller.as_ref().map(|teller| Witness::from(teller.told())),
            nbd: Nbd::from(statistics),
            cpu_seconds: process::cpu_time().as_secs_f64(),
        };
        let report = Report::new(file, self.store.engine(), &status);
        let receives = ReceiveLine::all(&self.store);
        Ok(Report { server: Some(server), maps: self.snapshots(), receives, ..report })
    }
}

impl Served for Commands {
    fn answer(&self, request: Request, progress: &mut Tell<'_>) -> Result<Value> {
        match request {
            Request::Pid => json(&std::process::id()),
            Request::Status => json(&self.report()?),
            Request::VolumeList => {
                let volumes = self.store.status().volumes.into_iter();
                json(&volumes.map(|volume| VolumeLine::of(&volume)).collect::<Vec<_>>())
            }
            Request::Grow { bytes } => {
                let grown = grow::Grown { bytes: self.store.grow(bytes)? };
                tracing::info!("{}", grow::said(&grown));
                json(&grown)
            }
            Request::Scrub => json(&scrub::served(&self.store, progress)?),
            Request::ScrubOnly { name } => json(&scrub::served_only(&self.store, &name, progress)?),
            Request::SnapshotSpace => json(&self.snapshot_space(progress)?),
            Request::VolumeSpace => json(&self.volume_space(progress)?),
            Request::ReceiveExpire { days } => {
                let gone = Copies::of(&self.store).expire_receives(days)?;
                gone.iter().for_each(|name| tracing::info!("{}", replicate::expired(name)));
                json(&gone)
            }
            Request::ReceiveList => json(&ReceiveLine::all(&self.store)),
            Request::SnapshotList => json(&SnapshotLine::all(self.store.engine())),
            Request::SnapshotCreate { ref snapshots } => {
                self.store.snapshot(snapshots, &mut || drop(progress("the moment", 0, 0)))?;
                tracing::info!("{}", volume::said(&request));
                Ok(Value::Null)
            }
            change => {
                guard::clients(&change, |name| {
                    self.server.lock().as_ref().map_or(0, |server| server.clients_of(name))
                })?;
                volume::block::apply(&self.store, &change)?;
                if let Some(server) = self.server.lock().as_ref() {
                    server.volumes_changed();
                }
                tracing::info!("{}", volume::said(&change));
                Ok(Value::Null)
            }
        }
    }

    fn take(
        &self,
        request: Request,
        input: &mut (dyn Read + Send),
        progress: &mut Tell<'_>,
    ) -> Result<Value> {
        // From now on the client sends.
        progress("ready", 0, 0)?;
        let input = BufReader::with_capacity(PIECE_BYTES, stream::Pieces::new(input));
        match request {
            Request::Import { name, domain } => {
                let look = &mut |done| progress("importing", done, 0);
                let domain = volume::block::domain_of(&self.store, domain.as_deref())?;
                let copies = Copies::of(&self.store).in_domain(domain);
                let bytes = copies.import(&name, input, look)?;
                tracing::info!("imported volume '{}' of {}", name.escape_debug(), Size(bytes));
                json(&bytes)
            }
            Request::Receive { volume, rollback, domain, .. } => {
                let look = &mut |done| progress("receiving", done, 0);
                let domain = volume::block::domain_of(&self.store, domain.as_deref())?;
                let copies = Copies::of(&self.store).in_domain(domain);
                let received = copies.receive(volume.as_deref(), rollback, input, look)?;
                tracing::info!("received snapshot '{}'", received.name.escape_debug());
                json(&copied::Received::from(&received))
            }
            _ => Err(Error::new(Kind::Unsupported, "the server of a block store does not do this")),
        }
    }

    fn give(&self, request: Request, output: &mut dyn Write) -> Result<Value> {
        let totals = match &request {
            Request::Export { name } => Copies::of(&self.store).export(name, output)?,
            Request::Send { snapshot, from, resume, skip_damaged, .. } => {
                let what = copied::what(snapshot, from, resume, *skip_damaged)?;
                Copies::of(&self.store).send(&what, output)?
            }
            _ => {
                let message = "the server of a block store does not do this";
                return Err(Error::new(Kind::Unsupported, message));
            }
        };
        json(&copied::Sent::from(&totals))
    }

    fn talk(
        &self,
        request: Request,
        input: &mut (dyn Read + Send),
        output: &mut dyn Write,
    ) -> Result<Value> {
        let (copies, nonce) = (Copies::of(&self.store), random_bytes()?);
        let input = BufReader::with_capacity(PIECE_BYTES, input);
        match &request {
            Request::Send { snapshot, from, resume, skip_damaged, .. } => {
                let what = copied::what(snapshot, from, resume, *skip_damaged)?;
                let totals = copies.negotiate(&what, &nonce, output, input)?;
                json(&copied::Sent::from(&totals))
            }
            Request::Receive { volume, rollback, domain, .. } => {
                let (into, look) = (volume.as_deref(), &mut |_| Ok(()));
                let domain = volume::block::domain_of(&self.store, domain.as_deref())?;
                let copies = copies.in_domain(domain);
                let received =
                    copies.receive_or_negotiate(into, *rollback, input, output, &nonce, look)?;
                tracing::info!("received snapshot '{}'", received.name.escape_debug());
                json(&copied::Received::from(&received))
            }
            _ => Err(Error::new(Kind::Unsupported, "the server of a block store does not do this")),
        }
    }
}

/// Bytes of a stream that are read at once.
const PIECE_BYTES: usize = 256 << 10;

fn json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value)
        .map_err(|e| Error::new(Kind::Io, "an answer can't be written").caused_by(e))
}
