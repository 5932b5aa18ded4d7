//! The volumes of a store, and the verbs that change them. Changes are records in the one order of
//! all changes.

use onefold_core::{Error, Kind, Result, Ticket, VolumeId, VolumeLimits};

use super::{
    acts::check_snapshot_name,
    admission::{Purpose, wait},
};
use crate::{
    coverage::Mark,
    engine::{
        admission::admit_range,
        gather::{admit_known, make_room},
        quota,
    },
    format::catalogue::{CatalogueChange, NoDedup},
    kernel::{Kernel, State, VolumeState},
    rules::Rule,
    scheme::verbs::Scheme,
};

/// The volumes and their numbers.
pub(crate) fn volumes(kernel: &Kernel) -> Vec<(VolumeId, VolumeState)> {
    let state = kernel.state.lock();
    let volumes = state.volumes.iter().filter(|(_, volume)| volume.is_any_volume());
    volumes.map(|(&id, volume)| (id, volume.clone())).collect()
}

/// Volumes that are looked at while requests of clients wait for the state.
const NAMED_TOGETHER: usize = 256;

/// The names of the volumes, in order, and their sizes in blocks. Between a few hundred of them others
/// may change the volumes: one that gets another name meanwhile may be there twice, or not at all.
pub(crate) fn names(kernel: &Kernel) -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = Vec::new();
    loop {
        let last = all.last().map(|(name, _)| name.as_str());
        let some = kernel.state.lock().volumes.names_behind(last, NAMED_TOGETHER);
        let more = some.len() == NAMED_TOGETHER;
        all.extend(some);
        if !more {
            return all;
        }
    }
}

/// The number of a volume, or of a snapshot as in `vm1@monday`.
pub(crate) fn find_volume(kernel: &Kernel, name: &str) -> Result<VolumeId> {
    kernel.state.lock().volumes.named(name).ok_or_else(|| {
        let what = if name.contains('@') { "snapshot" } else { "volume" };
        Error::new(Kind::NotFound, format!("there is no {what} '{name}'"))
    })
}

/// The name that leads to a volume, or to a snapshot as in `vm1@monday`; `None` when it was deleted.
pub(crate) fn name_of(kernel: &Kernel, id: VolumeId) -> Option<String> {
    let state = kernel.state.lock();
    let volume = state.volumes.get(id).ok()?;
    let Some(origin) = volume.snapshot else { return Some(volume.name.clone()) };
    let of = state.volumes.get(origin.volume).ok()?;
    Some(format!("{}@{}", of.name, volume.name))
}

/// One volume as it is now.
pub(crate) fn volume(kernel: &Kernel, id: VolumeId) -> Result<VolumeState> {
    kernel.state.lock().volumes.get(id).cloned()
}

/// Makes a volume. It exists for good when the ticket is durable.
pub(crate) fn create_volume(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    name: &str,
    blocks: u64,
) -> Result<(VolumeId, Ticket)> {
    create_volume_with(kernel, scheme, name, blocks, NewVolume::default())
}

/// The choices for a new volume besides its name and size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewVolume {
    /// Its blocks that are not deduplicated.
    pub no_dedup: NoDedup,
    /// How fast clients may use it.
    pub limits: VolumeLimits,
    /// Blocks that clients may map in it; 0 for any number.
    pub quota: u64,
    /// The domain that its data belongs to; only a sealed store has another one than the first.
    pub domain: u32,
}

/// As [`create_volume`], with ranges that are not deduplicated, limits for its clients, a quota, and a
/// domain.
pub(crate) fn create_volume_with(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    name: &str,
    blocks: u64,
    new: NewVolume,
) -> Result<(VolumeId, Ticket)> {
    let NewVolume { no_dedup, limits, quota, domain } = new;
    let mut state = kernel.state.lock();
    state.volumes.check_domain(domain)?;
    state.volumes.check_new_name(name)?;
    state.volumes.check_size(blocks, None)?;
    quota::check(scheme, quota)?;
    let most = kernel.settings.limits;
    if state.volumes.count() as u64 >= most.volumes / 2 {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a store holds at most {} volumes", most.volumes / 2),
        ));
    }
    if state.volumes.next() > most.volume_number {
        let message = format!(
            "this store has given all numbers of volumes, {}, and makes no more volumes",
            most.volume_number
        );
        return Err(Error::new(Kind::InvalidInput, message));
    }
    admit_known(kernel, scheme, &mut state, Purpose::Known)?;
    // Deleted volumes stay in the table until their blocks are free.
    let ahead = scheme.count_ahead(&state).map_or(0, |ahead| ahead.volumes);
    if ahead >= most.volumes && kernel.keeps(Rule::VolumesLimited) {
        kernel.coverage.hit(Mark::CatalogueFull);
        state.checkpoint_wanted = true;
        return Err(wait());
    }
    let volume = VolumeState {
        name: name.to_owned(),
        blocks,
        no_dedup: no_dedup.clone(),
        limits,
        quota,
        domain,
        snapshot: None,
        receiving: None,
        replica_of: None,
    };
    let id = state.volumes.create(volume);
    let name = name.to_owned();
    if quota > 0 {
        state.volumes.expect_quotas();
    }
    let change = CatalogueChange::Create { id, name, blocks, no_dedup, limits, quota, domain };
    let ticket = record(kernel, &mut state, change);
    scheme.end_change(&mut state);
    Ok((id, ticket))
}

/// Changes the size of a volume; shrinking drops what lies beyond.
pub(crate) fn resize_volume(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    id: VolumeId,
    blocks: u64,
) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    state.volumes.check_writable(id)?;
    let before = state.volumes.get(id)?.blocks;
    state.volumes.check_size(blocks, Some(id))?;
    admit_known(
        kernel,
        scheme,
        &mut state,
        if blocks < before { Purpose::FreesSpace } else { Purpose::Known },
    )?;
    if blocks < before {
        admit_range(kernel, scheme, &mut state)?;
    }
    state.volumes.change(id, |volume| volume.blocks = blocks);
    let ticket = record(kernel, &mut state, CatalogueChange::Resize { id, blocks });
    if blocks < before {
        state.punch(id, blocks, before, false);
    }
    scheme.end_change(&mut state);
    Ok(ticket)
}

/// Gives a volume another name.
pub(crate) fn rename_volume(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    id: VolumeId,
    name: &str,
) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    let volume = state.volumes.get(id)?;
    if volume.name == name {
        return Ok(Ticket(state.windows.newest().0));
    }
    match volume.snapshot {
        Some(origin) => check_snapshot_name(name).and_then(|()| {
            match state.volumes.snapshot_expected(origin.volume, name) {
                true => {
                    Err(Error::new(Kind::Exists, format!("there is a snapshot '{name}' already")))
                }
                false => Ok(()),
            }
        })?,
        None => state.volumes.check_new_name(name)?,
    }
    admit_known(kernel, scheme, &mut state, Purpose::Known)?;
    state.volumes.change(id, |volume| volume.name = name.to_owned());
    let ticket = record(kernel, &mut state, CatalogueChange::Rename { id, name: name.to_owned() });
    scheme.end_change(&mut state);
    Ok(ticket)
}

/// A setting of a volume.
#[derive(Clone, Debug)]
pub enum Setting {
    /// Critical ranges: blocks that were written before stay shared, or alone, until they are written again.
    NoDedup(NoDedup),
    /// Limits for its clients.
    Limits(VolumeLimits),
    /// So many blocks may be mapped in it, or any number with 0. What is mapped already stays.
    Quota(u64),
}

/// Gives a volume another setting.
pub(crate) fn set(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    id: VolumeId,
    setting: Setting,
) -> Result<Ticket> {
    if let Setting::Quota(blocks) = setting {
        quota::check(scheme, blocks)?;
    }
    change_settings(kernel, scheme, id, |volume| match setting {
        Setting::NoDedup(no_dedup) => volume.no_dedup = no_dedup,
        Setting::Limits(limits) => volume.limits = limits,
        Setting::Quota(blocks) => volume.quota = blocks,
    })
}

fn change_settings(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    id: VolumeId,
    change: impl FnOnce(&mut VolumeState),
) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    state.volumes.check_writable(id)?;
    let mut volume = state.volumes.get(id)?.clone();
    admit_known(kernel, scheme, &mut state, Purpose::Known)?;
    let before = volume.quota;
    change(&mut volume);
    let VolumeState { limits, quota, .. } = volume;
    let no_dedup = volume.no_dedup.clone();
    let kept = if kernel.keeps(Rule::QuotaRecorded) { quota } else { before };
    let recorded = CatalogueChange::Settings { id, no_dedup, limits, quota: kept };
    state.volumes.change(id, |now| *now = volume);
    let ticket = record(kernel, &mut state, recorded);
    if quota > 0 && before == 0 {
        state.volumes.expect_quotas();
        quota::begin(kernel, &mut state, id);
    }
    // Blocks that were written before are not written into any more: other ranges may be
    // critical now.
    state.windows.close();
    Ok(ticket)
}

/// Deletes a volume; its blocks become free in the background.
pub(crate) fn delete_volume(kernel: &Kernel, scheme: &dyn Scheme, id: VolumeId) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    let blocks = state.volumes.get(id)?.blocks;
    let snapshots = state.volumes.snapshots_ahead(id);
    if snapshots > 0 {
        let many = if snapshots == 1 { "a snapshot" } else { "snapshots" };
        let message =
            format!("the volume has {many}: delete what `onefold snapshot list` shows of it first");
        return Err(Error::new(Kind::InvalidInput, message));
    }
    if state.volumes.received_for(id) {
        return Err(Error::new(
            Kind::InvalidInput,
            "a snapshot is being received that needs this: go on with that, or give it up by \
             `onefold receive --abort`",
        ));
    }
    if state.acts_ahead().any(|act| act.concerns(id)) {
        state.checkpoint_wanted = true;
        return Err(wait());
    }
    admit_known(kernel, scheme, &mut state, Purpose::Relief)?;
    admit_range(kernel, scheme, &mut state)?;
    let domain = state.volumes.get(id)?.domain;
    state.volumes.remove(id);
    let ticket = record(kernel, &mut state, CatalogueChange::Delete { id });
    state.lets_go(domain);
    state.punch(id, 0, blocks, false);
    scheme.end_change(&mut state);
    Ok(ticket)
}

/// Puts a change into the open window. A window holds few changes of the catalogue: each takes
/// a carrier of its own.
fn record(kernel: &Kernel, state: &mut State, change: CatalogueChange) -> Ticket {
    const PER_WINDOW: usize = 8;
    if state.windows.open().catalogue.len() >= PER_WINDOW {
        state.windows.close();
    }
    make_room(kernel, state);
    state.windows.change_catalogue(change);
    Ticket(state.windows.open().number.0)
}
