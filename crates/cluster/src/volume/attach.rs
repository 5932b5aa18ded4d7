//! Attaching and closing a volume: a session becomes its owner, reads its header, and completes
//! what a crash of the previous owner left undone.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use onefold_core::{
    Error, Kind, Result,
    object::{Pool, Refusal},
};

use super::{
    Volume,
    cache_manager::CacheManager,
    discard::Trims,
    group_commit::GroupCommit,
    header::{self, Bits, Inline},
    inline::InlineWrites,
    kept::while_kept,
    long_discards::LongDiscards,
    objects::Objects,
    ownership::Ownership,
    promotion::Promotion,
    read::Reads,
    write::Writes,
};
use crate::{
    format::{
        ObjectId,
        catalogue::{Cut, Named, What},
    },
    kernel::Kernel,
    layers::below::{BORN, Below},
    names::Names,
    replies::failed,
    rules::Rule,
    session::Session,
    settings::Dedup,
};

/// Objects of a volume that are looked for one by one after a crash, in those that are when it is
/// deleted: reading a few that are not there costs less than listing those of all volumes.
const RESCANNED_MAX: u64 = 16;

/// Names of a page of the pool's listing.
const NAMES_A_PAGE: usize = 1000;

/// How a volume is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For writing; `Busy` when another server writes.
    Own,
    /// For writing; the server that writes now is fenced.
    TakeOver,
    /// For reading only, also while a server writes.
    Read,
}

/// The purpose for which a volume is attached for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A client changes it: it is no replica.
    Use,
    /// It gets another number, or becomes an ordinary volume: it may be a replica.
    Exchange,
    /// It is filled, and has no name yet: it has a record in the shard of the name that it will have, or that of its
    /// volume.
    Fill,
}

impl Volume {
    /// Attaches the volume called `name`.
    ///
    /// # Errors
    /// `NotFound`, `Busy` when another server writes to it, `Denied` or `Unsupported` when its last
    /// owner can't be fenced.
    pub fn attach(session: &Arc<Session>, name: &str, mode: Mode) -> Result<Volume> {
        let named = session.find(name)?.filter(|named| named.what == What::Volume);
        Volume::attach_named(session, name, &named.ok_or_else(|| missing(name))?, mode)
    }

    /// Attaches the volume that `name` stood for when it was looked up.
    ///
    /// # Errors
    /// As [`attach`](Self::attach); `NotFound` also when it has another name by now.
    pub(crate) fn attach_named(
        session: &Arc<Session>,
        name: &str,
        named: &Named,
        mode: Mode,
    ) -> Result<Volume> {
        if mode != Mode::Read
            && session.kernel().format().received
            && is_replica(session.kernel(), named.id)?
        {
            // Nobody is shut out for it.
            return Err(only_received(name));
        }
        attach_for(session, name, named, (mode, Purpose::Use))
    }

    /// Completes what a crash of the previous owner may have left undone for its objects. They are
    /// looked for one by one, but for those of a huge volume: these are found in the pool's listing,
    /// whose cost goes with the objects that exist. The previous owner is fenced, so none appears
    /// behind the listing.
    fn rescan(&self) -> Result<()> {
        let kernel = self.objects.kernel();
        let end = self.bytes().div_ceil(self.objects.bytes());
        if end <= RESCANNED_MAX * kernel.settings().looked_for_max {
            return (0..end).try_for_each(|index| self.objects.rescan(index));
        }
        let mut from = None;
        loop {
            let page = kernel.store().list(Pool::Metadata, from.as_deref(), NAMES_A_PAGE).map_err(
                |refusal| {
                    let name = self.name.escape_debug();
                    failed(format_args!("the objects of volume '{name}' can't be listed"), refusal)
                },
            )?;
            self.renew()?;
            let objects = page.names.iter().filter_map(|name| ObjectId::parse(name));
            objects
                .filter(|object| object.volume == self.id && object.index < end)
                .try_for_each(|object| self.objects.rescan(object.index))?;
            if page.next.is_none() {
                return Ok(());
            }
            from = page.next;
        }
    }

    /// Reads the header, and makes from it what remembers something of the volume.
    fn load(
        session: &Arc<Session>,
        name: &str,
        named: &Named,
        read_only: bool,
        inline: Option<Arc<Inline>>,
    ) -> Result<Volume> {
        let failed = |refusal| {
            failed(
                format_args!("the header of volume '{}' can't be read", name.escape_debug()),
                refusal,
            )
        };
        let id = named.id;
        // What a layer hands down until its bits are read is seen in them, and what it hands down later is missing
        // in the layer, so that it is looked for again.
        let below = Below::read(session.kernel(), id).map_err(failed)?;
        let header = header::keys(session.kernel(), id).map_err(failed)?;
        let bits = Bits::load(&header).map_err(failed)?;
        let discards = LongDiscards::load(session.clone(), id, &header).map_err(failed)?;
        let cache = CacheManager::load(session.clone(), &header);
        let discards = Arc::new(discards);
        let lived = header::lives(&header, BORN);
        let is_replica = header.iter().any(|(key, _)| key == header::REPLICA);
        let found = (bits, below);
        let objects = Arc::new(Objects::new(session.clone(), id, name, read_only, found, lived));
        let inline =
            inline.map(|inline| InlineWrites::new(objects.clone(), discards.clone(), inline));
        let writes = Arc::new(Writes::new(objects.clone(), discards.clone(), inline));
        let promotion = Arc::new(Promotion::new(objects.clone(), cache));
        Ok(Volume {
            id,
            name: name.to_owned(),
            size: AtomicU64::new(named.bytes),
            ownership: None,
            group_commit: GroupCommit::new(objects.clone(), writes.clone()),
            reads: Reads::new(objects.clone(), discards.clone(), promotion.clone()),
            trims: Trims::new(objects.clone(), discards, writes),
            promotion,
            objects,
            changes: Arc::default(),
            is_replica,
            unsure: AtomicBool::new(false),
        })
    }

    /// Keeps the lock; to be called three times a lease.
    ///
    /// # Errors
    /// `Busy` when another server has it.
    pub fn renew(&self) -> Result<()> {
        self.ownership.as_ref().map_or(Ok(()), Ownership::renew)
    }

    /// Closes in order: all writes are in the store, and the next owner need not rescan the
    /// objects.
    ///
    /// # Errors
    /// `Stopped` when another server took the volume over.
    pub fn detach(self) -> Result<()> {
        let Some(ownership) = self.ownership else { return Ok(()) };
        self.group_commit.drain();
        ownership.release(self.objects.are_recorded(), self.promotion.last_hits())
    }

    /// Before a volume is cut off: what layers below have behind the new end counts no more.
    ///
    /// # Errors
    /// `Busy` while a snapshot below is being deleted, whose objects may come meanwhile.
    pub(crate) fn inherit_less(&self, bytes: u64) -> Result<()> {
        let objects = bytes.div_ceil(self.objects.bytes());
        let cut = self.objects.inherit_less(objects);
        cut.map_err(|refusal| match refusal {
            Refusal::Busy => Error::new(
                Kind::Busy,
                format!(
                    "a snapshot below volume '{}' is being deleted: try again when that is done",
                    self.name.escape_debug()
                ),
            ),
            refusal => self.objects.failed(objects, refusal),
        })
    }

    /// Sets the size of a volume that is attached for writing. The objects beyond the size stay.
    pub(crate) fn set_size(&self, bytes: u64) {
        self.size.store(bytes, Relaxed);
    }
}

/// Attaches the volume that `name` stood for when it was looked up, for any purpose. What is filled has the size that `named` says.
///
/// # Errors
/// As [`Volume::attach_named`]; `Denied` for a replica that is to be used.
pub(crate) fn attach_for(
    session: &Arc<Session>,
    name: &str,
    named: &Named,
    (mode, purpose): (Mode, Purpose),
) -> Result<Volume> {
    let inline = session.kernel().settings().dedup == Dedup::Inline;
    if inline && session.kernel().format().volume_cut == Cut::Content {
        return Err(Error::new(
            Kind::Unsupported,
            "volumes that are cut by their content can't be deduplicated inline",
        ));
    }
    if mode == Mode::Read {
        return Volume::load(session, name, named, true, None);
    }
    if session.leaving().may_be_left().lock().contains(&named.id) {
        let what = format!(
            "a snapshot or rollback of volume '{}' had no answer and may still come: restart its server first",
            name.escape_debug()
        );
        return Err(Error::new(Kind::Busy, what));
    }
    let inline = inline.then(|| Arc::new(Inline::new(session.kernel().stamp())));
    let ownership = Ownership::new(session.clone(), named.id, name, inline.clone());
    let clean = ownership.acquire(mode == Mode::TakeOver).map_err(|refusal| match refusal {
        Refusal::Busy => Error::new(
            Kind::Busy,
            format!("volume '{}' is being written by another server", name.escape_debug()),
        ),
        refusal => failed(format_args!("volume '{}' can't be taken", name.escape_debug()), refusal),
    })?;
    // The size may have changed until the lock was ours, and the name may stand for another number: this one
    // may be a layer by now, and who deletes it is not to shut this session out.
    let load = || -> Result<Volume> {
        let volume = Volume::load(session, name, named, false, inline)?;
        if purpose == Purpose::Fill {
            is_filled(session, name, named)?;
            return Ok(volume);
        }
        let again = session.find(name)?.filter(|again| again.id == named.id);
        volume.set_size(again.ok_or_else(|| missing(name))?.bytes);
        // Whoever makes it one owns it meanwhile.
        if purpose == Purpose::Use
            && session.kernel().keeps(Rule::ReplicasRefused)
            && volume.is_replica
        {
            return Err(only_received(name));
        }
        Ok(volume)
    };
    let volume = match load() {
        Ok(volume) => Volume { ownership: Some(ownership), ..volume },
        Err(error) => {
            ownership.give_back();
            return Err(error);
        }
    };
    if !clean {
        while_kept(session.kernel(), None, &volume, || volume.rescan())?;
    }
    Ok(volume)
}

/// True when a number is a replica.
pub(crate) fn is_replica(kernel: &Kernel, id: u64) -> Result<bool> {
    match kernel.read_value(&header::name(id), header::REPLICA) {
        Err(Refusal::Missing) => Ok(false),
        read => {
            let read = read.map_err(|why| failed("the header of a volume can't be read", why))?;
            Ok(!read.is_empty())
        }
    }
}

fn only_received(name: &str) -> Error {
    let name = name.escape_debug();
    let what = format!(
        "volume '{name}' is a replica, which only `onefold receive` changes: `onefold volume promote` makes it an \
         ordinary volume, and a snapshot of it can be cloned"
    );
    Error::new(Kind::Denied, what)
}

/// Refuses what is not being filled any more.
fn is_filled(session: &Session, name: &str, named: &Named) -> Result<()> {
    let record = Names::of(session.kernel()).recorded(name, named.id);
    let record = record.map_err(|why| failed("the names can't be read", why))?;
    let own = session.store().identity();
    if record.is_some_and(|record| record.is_received() || record.filler == own) {
        return Ok(());
    }
    let what = format!(
        "what was being received for volume '{}' was given up, or is a snapshot by now",
        name.escape_debug()
    );
    Err(Error::new(Kind::NotFound, what))
}

pub(super) fn missing(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no volume '{}'", name.escape_debug()))
}
