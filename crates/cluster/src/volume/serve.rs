//! Volumes for servers. A write is acknowledged when it is durable, and writes that arrive together
//! are sent together.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_core::{
    BLOCK_BYTES, BlockRead, Changes, Error, Exports, Extent, Kind, Result, Ticket, VolumeInfo,
    block::bytes_mut,
};
use parking_lot::{Mutex, RwLock};

use super::{
    Attached, GoesOn, Mode, Volume,
    attach::{is_replica, missing},
    attached::{OwnUse, StepBy},
    owners::volumes_of,
    trims_first::always,
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

/// How long somebody who wants a volume alone waits for a step of the server's own work on it. Its lock is not renewed
/// meanwhile.
const OWN_WORK: Duration = Duration::from_secs(5);
/// The time between two looks at that.
const OWN_WORK_LOOK: Duration = Duration::from_millis(1);

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
    /// Held for reading while a volume is attached, detached or gets another number, for writing only at the end, while
    /// all are closed: nobody who wants one volume waits for work on another. Taken first, and once; `open` is taken
    /// last and never held over a request to the store: locks are kept and volumes used meanwhile.
    closing: RwLock<()>,
    /// The volumes that are being attached, detached or get another number, each with a lock that is held meanwhile. One
    /// that gets another number has one lock under both.
    attaching: Mutex<BTreeMap<u64, Arc<Mutex<()>>>>,
    presence: Mutex<Presence>,
    /// Held while the names are read.
    listed: Mutex<Option<Listed>>,
}

fn moves(name: &str) -> Error {
    let what = format!("volume '{}' gets snapshots all the time", name.escape_debug());
    Error::new(Kind::Busy, what)
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
        let ids: Vec<u64> = self.open.lock().keys().copied().collect();
        let mut first = Ok(());
        for id in ids {
            // Who wants to have one alone waits for work on that one.
            let used = self.open.lock().get(&id).map(OwnUse::of);
            let volume = used.as_ref().and_then(OwnUse::volume);
            first =
                first.and(volume.and_then(|volume| volume.if_open(&mut does)).unwrap_or(Ok(())));
        }
        first
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
        let mut does = Some(does);
        for _ in 0..LOOKS {
            let id = self.find(name)?.0.id;
            let done = self.alone(id, || {
                if self.find(name)?.0.id != id {
                    return Ok(None);
                }
                self.detach_unused(id, name)?;
                does.take().map(|does| does(&self.session)).transpose()
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
        }
        Err(moves(name))
    }

    /// Does something that may give a volume another number, or make it. Who only reads it goes on with what it held,
    /// until that is deleted.
    ///
    /// # Errors
    /// `Busy` while somebody uses it for writing; those of detaching it, and of `does`.
    pub fn while_exchanged<T>(&self, name: &str, does: impl FnOnce() -> Result<T>) -> Result<T> {
        let _closing = self.closing.read();
        let find = || match self.find(name) {
            Err(none) if none.kind() == Kind::NotFound => Ok(None),
            found => found.map(|(named, _)| Some(named.id)),
        };
        let mut does = Some(does);
        for _ in 0..LOOKS {
            let Some(id) = find()? else { break };
            let done = self.alone(id, || {
                if find()? != Some(id) {
                    return Ok(None);
                }
                let reads = |volume: Arc<Attached>| onefold_core::Volume::is_read_only(&*volume);
                if self.attached(id).is_some_and(reads) {
                    self.open.lock().remove(&id);
                } else {
                    self.detach_unused(id, name)?;
                }
                does.take().map(|does| does()).transpose()
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
        }
        match does {
            Some(does) if find()?.is_none() => does(),
            _ => Err(moves(name)),
        }
    }

    /// Takes a snapshot, `vm1@monday`, of a volume, `vm1`, which clients may go on using.
    ///
    /// # Errors
    /// As [`Attached::snapshot`].
    pub fn snapshot(&self, name: &str) -> Result<()> {
        self.snapshot_while(name, &always)
    }

    /// The same, for one who says whether to go on.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot), and those of `goes_on`.
    pub fn snapshot_while(&self, name: &str, goes_on: GoesOn<'_>) -> Result<()> {
        let of = name.rsplit_once('@').map_or(name, |(of, _)| of);
        self.over(
            of,
            goes_on,
            |attached, by| attached.snapshot_by(name, by),
            |snapshots| snapshots.take(name),
        )
    }

    /// Makes a volume that holds what another one, which clients may go on using, or a snapshot holds.
    ///
    /// # Errors
    /// As [`Attached::clone_volume`].
    pub fn clone_volume(&self, of: &str, new_name: &str) -> Result<()> {
        self.clone_volume_while(of, new_name, &always)
    }

    /// The same, for one who says whether to go on.
    ///
    /// # Errors
    /// As [`clone_volume`](Self::clone_volume), and those of `goes_on`.
    pub fn clone_volume_while(&self, of: &str, new_name: &str, goes_on: GoesOn<'_>) -> Result<()> {
        self.over(
            of,
            goes_on,
            |attached, by| attached.clone_by(of, new_name, by),
            |snapshots| snapshots.clone_volume(of, new_name),
        )
    }

    /// Does something with a volume that is attached, which may have another number afterwards, or else with the
    /// store. Meanwhile nobody attaches or detaches it under either number: who did could have two of one number.
    fn over(
        &self,
        name: &str,
        goes_on: GoesOn<'_>,
        attached: impl Fn(&Attached, StepBy<'_>) -> Result<()>,
        does: impl Fn(Snapshots<'_>) -> Result<()>,
    ) -> Result<()> {
        let _closing = self.closing.read();
        let does = || does(Snapshots::of(&self.session).while_goes_on(goes_on));
        let find = || {
            let named = self.session.find(name)?.filter(|named| named.what == What::Volume);
            Ok::<_, Error>(named.map(|named| named.id))
        };
        for _ in 0..LOOKS {
            let Some(id) = find()? else { return does() };
            // Long trims are waited for while others have the volume.
            let used = self.attached_by(id, OwnUse::of);
            let waited = used.as_ref().and_then(OwnUse::volume);
            let _awaited = waited.map(|volume| volume.wait_for_trims(goes_on)).transpose()?;
            let done = self.alone(id, || {
                if find()? != Some(id) {
                    return Ok(None);
                }
                match (self.attached(id), waited) {
                    (None, _) => does().map(Some),
                    (Some(volume), Some(waited)) if Arc::ptr_eq(&volume, waited) => {
                        let entering = |new| self.has_one_lock(id, new);
                        let done = attached(&volume, StepBy { goes_on, entering: &entering });
                        let now = volume.id();
                        if now != id {
                            let mut open = self.open.lock();
                            open.remove(&id);
                            open.insert(now, volume);
                        }
                        done.map(Some)
                    }
                    // Somebody attached it meanwhile.
                    _ => Ok(None),
                }
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
        }
        Err(moves(name))
    }

    /// Who asks for a volume under the number that it is about to get waits for the one who gives it that.
    fn has_one_lock(&self, id: u64, new: u64) {
        let mut all = self.attaching.lock();
        if let Some(own) = all.get(&id).cloned() {
            all.entry(new).or_insert(own);
        }
    }

    /// Does something while nobody attaches the volume.
    fn alone<T>(&self, id: u64, does: impl FnOnce() -> T) -> T {
        let own = self.attaching.lock().entry(id).or_default().clone();
        let attaching = own.lock();
        let done = does();
        drop(attaching);
        // Without another one who waits, only the map and we know the lock.
        let mut all = self.attaching.lock();
        let numbers = all.values().filter(|one| Arc::ptr_eq(one, &own)).count();
        if Arc::strong_count(&own) == numbers + 1 {
            all.retain(|_, one| !Arc::ptr_eq(one, &own));
        }
        done
    }

    /// Detaches a volume that is attached, and that no client uses. The server's own work on it is waited for: each piece
    /// is short, and while the caller has the volume alone no further one begins.
    fn detach_unused(&self, id: u64, name: &str) -> Result<()> {
        let Some(mut volume) = self.open.lock().remove(&id) else { return Ok(()) };
        let begun = Instant::now();
        loop {
            volume = match Arc::try_unwrap(volume) {
                Ok(volume) => return volume.detach(),
                Err(volume) => volume,
            };
            // In this order: one of its own that ends between the two is no client.
            let own = volume.own_uses();
            let has_client = Arc::strong_count(&volume) - 1 > own;
            if has_client || begun.elapsed() > OWN_WORK {
                self.open.lock().insert(id, volume);
                let name = name.escape_debug();
                let what = match has_client {
                    true => format!("volume '{name}' is in use"),
                    false => format!(
                        "the server itself is at work on volume '{name}', as with trims or a snapshot: try again later"
                    ),
                };
                return Err(Error::new(Kind::Busy, what));
            }
            std::thread::sleep(OWN_WORK_LOOK);
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
        let volumes: Vec<OwnUse> = self.open.lock().values().map(OwnUse::of).collect();
        let volumes = volumes.iter().filter_map(OwnUse::volume);
        volumes.filter_map(|volume| volume.if_open(Volume::cached_bytes)).sum()
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
        self.attached_by(id, Arc::clone)
    }

    fn attached_by<T>(&self, id: u64, using: impl FnOnce(&Arc<Attached>) -> T) -> Option<T> {
        let mut open = self.open.lock();
        if open.get(&id).is_some_and(|volume| volume.is_lost()) {
            open.remove(&id);
        }
        open.get(&id).map(using)
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
                let _attaching = self.closing.read();
                let (named, mode) = self.find(name)?;
                let id = named.id;
                if let Some(volume) = self.attached(id) {
                    if mode == Mode::Read && !onefold_core::Volume::is_read_only(&*volume) {
                        // The snapshot has the number of the volume, which gets another one at this moment.
                        self.alone(id, || ());
                        continue;
                    }
                    return Ok(volume);
                }
                if let Some(volume) = self.attach(name, id)? {
                    return Ok(volume);
                }
            }
            Err(moves(name))
        };
        for_client(&self.session, open()).map(|volume| volume as Arc<dyn onefold_core::Volume>)
    }
}
