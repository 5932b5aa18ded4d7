//! Volumes for servers. A write is acknowledged when it is durable, and writes that arrive together
//! are sent together.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use onefold_core::{
    BLOCK_BYTES, BlockRead, Changes, Error, Exports, Extent, Kind, Result, Ticket, VolumeInfo,
    block::bytes_mut,
};
use parking_lot::{Mutex, RwLock};

use super::{
    Attached, Mode, Volume,
    attach::{is_replica, missing},
    owners::volumes_of,
};
use crate::{
    format::catalogue::{Named, What},
    layers::snapshots::Snapshots,
    presence::Presence,
    session::Session,
};

/// Most stretches that one request for allocation looks at. A stretch of objects that do not exist
/// costs no read, only time.
const STRETCHES: usize = 64 << 10;

/// Looks for a volume that is opened; each after the first follows a snapshot that was taken meanwhile.
const LOOKS: u32 = 16;

/// Objects of these that it asks the store about.
const ASKED: usize = 256;

/// How much longer than it took to make a list of volumes others get it again, and how long at most.
const KEPT: u32 = 4;
const KEPT_MOST: Duration = Duration::from_secs(30);

impl onefold_core::Volume for Volume {
    fn size(&self) -> u64 {
        self.bytes()
    }

    fn is_read_only(&self) -> bool {
        self.ownership.is_none()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        let mut ranges: Vec<(u64, &mut [u8])> = reads
            .iter_mut()
            .map(|read| (read.first.0 * BLOCK_BYTES as u64, bytes_mut(read.into)))
            .collect();
        let results = self.read_together(&mut ranges);
        reads
            .iter_mut()
            .zip(results)
            .for_each(|(read, result)| read.result = self.for_client(result));
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.for_client(self.write_later(offset, data))
    }

    fn acknowledges_late(&self) -> bool {
        true
    }

    fn waits_beside(&self) -> usize {
        self.objects.kernel().store().batches()
    }

    fn changes(&self) -> Option<&Changes> {
        self.is_alone().then_some(&self.changes)
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        self.for_client(self.serves())?;
        self.within(offset, bytes)?;
        let block = BLOCK_BYTES as u64;
        let (start, end) = (offset.next_multiple_of(block), (offset + bytes) / block * block);
        if start < end {
            self.for_client(self.discard(start, end - start))?;
        }
        Ok(Ticket(0))
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, _keep: bool) -> Result<Ticket> {
        self.for_client(self.discard(offset, bytes)).map(|()| Ticket(0))
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.for_client(self.wait_for(ticket))
    }

    fn flush(&self) -> Result<()> {
        // The clients learn of failures from their tickets.
        self.group_commit.drain();
        self.for_client(self.serves())
    }

    fn extents(&self, offset: u64, bytes: u64, limit: usize) -> Result<Vec<Extent>> {
        self.for_client(self.serves())?;
        self.within(offset, bytes)?;
        self.group_commit.drain_place(offset..offset + bytes);
        let (mut at, end, mut extents) = (offset, offset + bytes, Vec::<Extent>::new());
        let (mut looked, mut last, mut asked) = (None, None, 0);
        // The rest of a huge range is left to another request, so that no client waits for hours.
        for _ in 0..STRETCHES {
            let index = at / self.objects.bytes();
            if last.replace(index) != Some(index) {
                asked += usize::from(!self.objects.is_absent(index));
            }
            if at == end || asked > ASKED {
                break;
            }
            let (bytes, kind) = self.for_client(self.reads.extent(at, &mut looked))?;
            let bytes = bytes.min(end - at);
            let full = extents.len() == limit.max(1);
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.bytes += bytes,
                _ if full => break,
                _ => extents.push(Extent { bytes, kind }),
            }
            at += bytes;
        }
        Ok(extents)
    }

    fn prefetch(&self, offset: u64, bytes: u64) -> Result<()> {
        self.within(offset, bytes)
    }
}

impl Volume {
    fn for_client<T>(&self, result: Result<T>) -> Result<T> {
        for_client(self.objects.session(), result)
    }
}

/// Where another server has taken over, that is the cause of the error.
fn for_client<T>(session: &Session, result: Result<T>) -> Result<T> {
    result.map_err(|error| match session.proof().get() {
        Some(proof) => proof.for_client(session.store(), error),
        None => error,
    })
}

/// The volumes of a session for a server: each is attached when a client asks for it first, and
/// stays attached when it gets another name.
pub struct ClusterExports {
    session: Arc<Session>,
    mode: Mode,
    /// By the number of the volume.
    open: Mutex<BTreeMap<u64, Arc<Attached>>>,
    /// Held for reading while a volume is attached, for writing while all are closed. Taken first;
    /// `open` is taken last and never held over a request to the store: locks are kept and volumes
    /// used meanwhile.
    closing: RwLock<()>,
    /// The volumes that are being attached, each with a lock that is held meanwhile.
    attaching: Mutex<BTreeMap<u64, Arc<Mutex<()>>>>,
    presence: Mutex<Presence>,
    /// Held while the names are read.
    listed: Mutex<Option<Listed>>,
}

/// A list of volumes that others get, too, who ask soon.
struct Listed {
    volumes: Vec<VolumeInfo>,
    made: Duration,
    until: Duration,
}

impl ClusterExports {
    /// All volumes of the session's store.
    #[must_use]
    pub fn new(session: Arc<Session>, mode: Mode) -> ClusterExports {
        ClusterExports {
            session,
            mode,
            open: Mutex::default(),
            closing: RwLock::default(),
            attaching: Mutex::default(),
            presence: Mutex::default(),
            listed: Mutex::default(),
        }
    }

    /// Does the work that is due for the open volumes: long trims and evictions. True when there is
    /// more to do. A volume that fails keeps the others from nothing.
    ///
    /// # Errors
    /// The first of the store's; `Busy` or `Stopped` when another server took a volume over.
    pub fn tend(&self) -> Result<bool> {
        let mut more = false;
        self.session.tend();
        // A volume of which a snapshot is being taken has its turn another time.
        self.each_open(|volume| {
            if volume.ownership.is_some() {
                let (discards, evicts) = (volume.discard_step(), volume.evict_step());
                more |= discards? | evicts?;
            }
            Ok(())
        })?;
        Ok(more)
    }

    /// Does something with each open volume, whatever becomes of the others; gives the first error.
    fn each_open(&self, mut does: impl FnMut(&Volume) -> Result<()>) -> Result<()> {
        let volumes: Vec<Arc<Attached>> = self.open.lock().values().cloned().collect();
        volumes.iter().filter_map(|volume| volume.if_open(&mut does)).fold(Ok(()), Result::and)
    }

    /// Publishes the load for workers, and learns how many servers share the cache. Errors are
    /// ignored, since the next call publishes again.
    pub fn publish(&self) {
        let _ = self.session.publish(false);
        let now = self.session.kernel().store().time();
        if let Ok(seen) = self.presence.lock().look_at(self.session.kernel(), now) {
            self.session.cache_budget().share_with(seen.servers);
        }
    }

    /// Keeps the locks of the volumes that are open.
    ///
    /// # Errors
    /// As [`tend`](Self::tend).
    pub fn renew(&self) -> Result<()> {
        self.each_open(Volume::renew)
    }

    /// Attaches the volumes that sessions owned which were shut out, so that clients that come back need not
    /// wait for it. `told` hears of each by its name, and says whether to go on; one that fails keeps the
    /// others from nothing, and is tried again when a client asks for it.
    ///
    /// # Errors
    /// The store's, when the owners can't be looked up.
    pub fn attach_all_of(
        &self,
        identities: &[String],
        mut told: impl FnMut(&str, Result<()>) -> bool,
    ) -> Result<()> {
        for name in volumes_of(&self.session, identities)? {
            let attached = self.open(&name).map(drop);
            if !told(&name, attached) {
                break;
            }
        }
        Ok(())
    }

    /// Volumes came, went, or got other names by this session: the next list is made anew.
    pub fn forget_list(&self) {
        *self.listed.lock() = None;
    }

    /// Does something with a volume that is not attached meanwhile; one that nobody uses is detached first.
    ///
    /// # Errors
    /// `Busy` while somebody uses it; those of detaching it, and of `does`.
    pub fn while_detached<T>(
        &self,
        name: &str,
        does: impl FnOnce(&Arc<Session>) -> Result<T>,
    ) -> Result<T> {
        // Others are opened and closed meanwhile; who asks for this one waits.
        let _closing = self.closing.read();
        let id = self.find(name)?.0.id;
        self.alone(id, || {
            self.detach_unused(id, name)?;
            does(&self.session)
        })
    }

    /// Does something that may give a volume another number, or make it. Who only reads it goes on with what it held,
    /// until that is deleted.
    ///
    /// # Errors
    /// `Busy` while somebody uses it for writing; those of detaching it, and of `does`.
    pub fn while_exchanged<T>(&self, name: &str, does: impl FnOnce() -> Result<T>) -> Result<T> {
        let _closing = self.closing.read();
        let id = match self.find(name) {
            Err(none) if none.kind() == Kind::NotFound => return does(),
            found => found?.0.id,
        };
        self.alone(id, || {
            let reads = |volume: Arc<Attached>| onefold_core::Volume::is_read_only(&*volume);
            if self.attached(id).is_some_and(reads) {
                self.open.lock().remove(&id);
            } else {
                self.detach_unused(id, name)?;
            }
            does()
        })
    }

    /// Takes a snapshot, `vm1@monday`, of a volume, `vm1`, which clients may go on using.
    ///
    /// # Errors
    /// As [`Attached::snapshot`].
    pub fn snapshot(&self, name: &str) -> Result<()> {
        let of = name.rsplit_once('@').map_or(name, |(of, _)| of);
        self.over(
            of,
            |attached| attached.snapshot(name),
            |session| Snapshots::of(session).take(name),
        )
    }

    /// Makes a volume that holds what another one, which clients may go on using, or a snapshot holds.
    ///
    /// # Errors
    /// As [`Attached::clone_volume`].
    pub fn clone_volume(&self, of: &str, new_name: &str) -> Result<()> {
        self.over(
            of,
            |attached| attached.clone_volume(of, new_name),
            |session| Snapshots::of(session).clone_volume(of, new_name),
        )
    }

    /// Does something with a volume that is attached, which may have another number afterwards, or else with the
    /// store. In the first case nobody attaches or detaches a volume meanwhile: who did could have two of one number.
    fn over(
        &self,
        name: &str,
        attached: impl FnOnce(&Attached) -> Result<()>,
        does: impl FnOnce(&Arc<Session>) -> Result<()>,
    ) -> Result<()> {
        // Long trims first, as others attach volumes meanwhile.
        if let Some(named) = self.session.find(name)?.filter(|named| named.what == What::Volume)
            && let Some(volume) = self.attached(named.id)
        {
            while volume.with(Volume::discard_step)? {}
        }
        let closing = self.closing.write();
        let Some(named) = self.session.find(name)?.filter(|named| named.what == What::Volume)
        else {
            drop(closing);
            return does(&self.session);
        };
        let id = named.id;
        let Some(volume) = self.attached(id) else {
            drop(closing);
            return self.while_detached(name, does);
        };
        let done = attached(&volume);
        let now = volume.id();
        if now != id {
            let mut open = self.open.lock();
            open.remove(&id);
            open.insert(now, volume);
        }
        done
    }

    /// Does something while nobody attaches the volume.
    fn alone<T>(&self, id: u64, does: impl FnOnce() -> T) -> T {
        let own = self.attaching.lock().entry(id).or_default().clone();
        let attaching = own.lock();
        let done = does();
        drop(attaching);
        // Without another one who waits, only the map and we know the lock.
        let mut all = self.attaching.lock();
        if Arc::strong_count(&own) == 2 {
            all.remove(&id);
        }
        done
    }

    /// Detaches a volume that is attached, and that nobody uses.
    fn detach_unused(&self, id: u64, name: &str) -> Result<()> {
        let mut open = self.open.lock();
        let Some(volume) = open.remove(&id) else { return Ok(()) };
        match Arc::try_unwrap(volume) {
            Ok(volume) => {
                drop(open);
                volume.detach()
            }
            Err(volume) => {
                open.insert(id, volume);
                let what = format!("volume '{}' is in use", name.escape_debug());
                Err(Error::new(Kind::Busy, what))
            }
        }
    }

    /// Closes all volumes. Nobody else may use them any more.
    ///
    /// # Errors
    /// The first failure.
    pub fn close(&self) -> Result<()> {
        let _closing = self.closing.write();
        let mut first = Ok(());
        for volume in std::mem::take(&mut *self.open.lock()).into_values() {
            let closed = match Arc::try_unwrap(volume) {
                Ok(volume) => volume.detach(),
                Err(volume) => {
                    let what = format!("volume '{}' is still in use", volume.name().escape_debug());
                    Err(Error::new(Kind::Busy, what))
                }
            };
            first = first.and(closed);
        }
        self.session.chunk_pool().settle_attempts();
        let _ = self.session.unpublish();
        first
    }

    /// Bytes of hot chunks that are kept in the objects of the volumes that are open.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        let volumes: Vec<Arc<Attached>> = self.open.lock().values().cloned().collect();
        volumes.iter().filter_map(|volume| volume.if_open(Volume::cached_bytes)).sum()
    }
}

impl ClusterExports {
    /// What `name` stands for now, and how it is attached: a snapshot, like `vm1@monday`, for reading.
    fn find(&self, name: &str) -> Result<(Named, Mode)> {
        match self.session.find(name)?.filter(|named| named.what == What::Volume) {
            Some(named) => Ok((named, self.mode)),
            None if name.contains('@') => match Snapshots::of(&self.session).find(name) {
                Ok(snapshot) => Ok((snapshot.named(), Mode::Read)),
                Err(error) if error.kind() == Kind::InvalidInput => Err(missing(name)),
                Err(error) => Err(error),
            },
            None => Err(missing(name)),
        }
    }

    /// The volume of a number, if it is attached: perhaps it was under another name.
    fn attached(&self, id: u64) -> Option<Arc<Attached>> {
        let mut open = self.open.lock();
        if open.get(&id).is_some_and(|volume| volume.is_lost()) {
            open.remove(&id);
        }
        open.get(&id).cloned()
    }

    /// Attaches the volume that `name` stands for, if it still has this number; `None` when it has not. Who asks
    /// for the same one meanwhile waits for it.
    fn attach(&self, name: &str, id: u64) -> Result<Option<Arc<Attached>>> {
        self.alone(id, || {
            if let Some(volume) = self.attached(id) {
                return Ok(Some(volume));
            }
            // While others were at work with it, the name may have got another number.
            let (named, mode) = self.find(name)?;
            if named.id != id {
                return Ok(None);
            }
            let attached = match Volume::attach_named(&self.session, name, &named, mode) {
                // A replica is there to be read.
                Err(error)
                    if error.kind() == Kind::Denied
                        && is_replica(self.session.kernel(), named.id)? =>
                {
                    Volume::attach_named(&self.session, name, &named, Mode::Read)
                }
                attached => attached,
            };
            match attached {
                Ok(volume) => {
                    let volume = Arc::new(Attached::new(self.session.clone(), volume));
                    self.open.lock().insert(id, volume.clone());
                    Ok(Some(volume))
                }
                Err(error) if error.kind() == Kind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

impl Exports for ClusterExports {
    /// The volumes, by one reading of all names for those who ask at one time. However many ask, a
    /// fifth of the time is enough for that; the names of streams take none of a client's memory.
    fn list(&self) -> Vec<VolumeInfo> {
        let time = || self.session.kernel().store().time();
        let (mut listed, now) = (self.listed.lock(), time());
        if let Some(kept) = listed.as_ref().filter(|kept| (kept.made..kept.until).contains(&now)) {
            return kept.volumes.clone();
        }
        let Ok(found) = self.session.volumes() else { return Vec::new() };
        let mut volumes: Vec<VolumeInfo> =
            found.into_iter().map(|(name, named)| VolumeInfo { name, size: named.bytes }).collect();
        // Without them the volumes are served all the same.
        let snapshots = Snapshots::of(&self.session).all().unwrap_or_default();
        volumes.extend(
            snapshots
                .iter()
                .map(|snapshot| VolumeInfo { name: snapshot.full_name(), size: snapshot.bytes }),
        );
        let made = time();
        let until = made + (made.saturating_sub(now) * KEPT).min(KEPT_MOST);
        *listed = Some(Listed { volumes: volumes.clone(), made, until });
        volumes
    }

    fn open(&self, name: &str) -> Result<Arc<dyn onefold_core::Volume>> {
        let open = || {
            for _ in 0..LOOKS {
                // While a snapshot is taken, the number of the volume becomes that of the snapshot.
                let _attaching = self.closing.read();
                let (named, mode) = self.find(name)?;
                let id = named.id;
                if let Some(volume) = self.attached(id) {
                    if mode == Mode::Read && !onefold_core::Volume::is_read_only(&*volume) {
                        let what = format!("snapshot '{}' is being taken", name.escape_debug());
                        return Err(Error::new(Kind::Busy, what));
                    }
                    return Ok(volume);
                }
                if let Some(volume) = self.attach(name, id)? {
                    return Ok(volume);
                }
            }
            let what = format!("volume '{}' gets snapshots all the time", name.escape_debug());
            Err(Error::new(Kind::Busy, what))
        };
        for_client(&self.session, open()).map(|volume| volume as Arc<dyn onefold_core::Volume>)
    }
}
