//! Snapshots, clones and rollbacks: requests for acts, which the checkpoint of their moment
//! performs.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Error, Kind, Result, Ticket, VolumeId};

use super::admission::{full, wait};
use crate::{
    coverage::Mark,
    kernel::{Kernel, SnapshotOf, State, VolumeState},
    moments::{Act, Moment},
    overlay::Overlay,
    rules::Rule,
    scheme::{
        room::{pages_ahead, reserve, to_place},
        verbs::Scheme,
    },
};

/// Longest name of a snapshot in bytes.
pub(crate) const SNAPSHOT_NAME_MAX: usize = 127;

/// Acts that were asked for: durable once [`acts_done`] has reached `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The number of their moment.
    pub number: u64,
    /// The windows up to this ticket are in the moment: they must be durable before the acts are.
    pub moment: Ticket,
}

/// The number of the last moment whose acts are durable.
pub(crate) fn acts_done(kernel: &Kernel) -> u64 {
    kernel.state.lock().moments.1
}

/// The snapshots of a volume, by number.
pub(crate) fn snapshots(kernel: &Kernel, of: VolumeId) -> Vec<(VolumeId, VolumeState)> {
    let state = kernel.state.lock();
    let snapshots = state.volumes.snapshots(of).map(|(id, snapshot)| (id, snapshot.clone()));
    snapshots.collect::<BTreeMap<_, _>>().into_iter().collect()
}

/// Takes snapshots of volumes, all as of one moment.
pub(crate) fn snapshot(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    wanted: &[(VolumeId, String)],
    made_ms: u64,
) -> Result<(Vec<VolumeId>, Asked)> {
    let mut state = kernel.state.lock();
    let mut before: BTreeMap<VolumeId, BTreeSet<&str>> = BTreeMap::new();
    for (of, name) in wanted {
        let before = before.entry(*of).or_default();
        check_snapshot(kernel, &state, *of, name, before.len())?;
        if !before.insert(name) {
            return Err(exists(name));
        }
    }
    let of: Vec<VolumeId> = wanted.iter().map(|(of, _)| *of).collect();
    admit(kernel, scheme, &mut state, &of)?;
    let mut acts = Vec::with_capacity(wanted.len());
    for (of, name) in wanted {
        acts.push(expect_snapshot(&mut state, *of, name, made_ms)?);
    }
    let ids = acts.iter().map(Act::id).collect();
    Ok((ids, ask(kernel, &mut state, acts, &of)))
}

/// Makes a volume that holds what a volume or a snapshot holds.
pub(crate) fn clone_volume(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    of: VolumeId,
    name: &str,
    made_ms: u64,
) -> Result<(VolumeId, Asked)> {
    let mut state = kernel.state.lock();
    let origin = state.volumes.get(of)?.clone();
    state.volumes.check_new_name(name)?;
    state.volumes.check_size(origin.blocks, None)?;
    admit(kernel, scheme, &mut state, &[of])?;
    let id = state.volumes.give_number();
    state.volumes.expect(id, VolumeState { name: name.to_owned(), snapshot: None, ..origin });
    if !kernel.keeps(Rule::ActsSeenWhenTold) {
        state.volumes.show_expected();
    }
    let act = Act::Clone { id, of, name: name.to_owned(), made_ms };
    Ok((id, ask(kernel, &mut state, vec![act], &[of])))
}

/// Gives a volume what one of its snapshots holds. With `keep`, a snapshot of this name takes what
/// it held before, in the same moment.
pub(crate) fn rollback(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    to: VolumeId,
    keep: Option<&str>,
    made_ms: u64,
) -> Result<(Option<VolumeId>, Asked)> {
    let mut state = kernel.state.lock();
    state.volumes.check_writable(volume)?;
    let snapshot = state.volumes.get(to)?;
    if snapshot.snapshot.is_none_or(|origin| origin.volume != volume) {
        return Err(Error::new(Kind::InvalidInput, "a volume is rolled back to its own snapshots"));
    }
    let blocks = snapshot.blocks;
    state.volumes.check_size(blocks, Some(volume))?;
    if let Some(name) = keep {
        check_snapshot(kernel, &state, volume, name, 0)?;
    }
    admit(kernel, scheme, &mut state, &[volume, to])?;
    let mut acts = Vec::new();
    if let Some(name) = keep {
        acts.push(expect_snapshot(&mut state, volume, name, made_ms)?);
    }
    let kept = acts.first().map(Act::id);
    let id = state.volumes.give_number();
    state.volumes.roll_back(volume);
    acts.push(Act::Rollback { id, volume, to });
    Ok((kept, ask(kernel, &mut state, acts, &[volume, to])))
}

/// Fails unless a volume may have a snapshot of this name, beside so many others that are asked for
/// with it.
fn check_snapshot(
    kernel: &Kernel,
    state: &State,
    of: VolumeId,
    name: &str,
    beside: usize,
) -> Result<()> {
    if state.volumes.get(of)?.snapshot.is_some() {
        return Err(Error::new(
            Kind::InvalidInput,
            "a snapshot of a snapshot would be the same; clone it instead",
        ));
    }
    check_snapshot_name(name)?;
    let most = kernel.settings.limits.snapshots;
    if (state.volumes.snapshots_ahead(of) + beside) as u64 >= most {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a volume has at most {most} snapshots"),
        ));
    }
    if state.volumes.snapshot_expected(of, name) {
        return Err(exists(name));
    }
    Ok(())
}

fn exists(name: &str) -> Error {
    Error::new(Kind::Exists, format!("there is a snapshot '{name}' of the volume already"))
}

/// Says why a name can't be a snapshot's.
pub(crate) fn check_snapshot_name(name: &str) -> Result<()> {
    let wrong = if name.is_empty() {
        "is empty"
    } else if name.len() > SNAPSHOT_NAME_MAX {
        "is longer than 127 bytes"
    } else if name.contains(['@', '/']) {
        "has an '@' or a '/'"
    } else if name.chars().any(char::is_control) {
        "has control characters"
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::InvalidInput, format!("the name of the snapshot {wrong}")))
}

fn expect_snapshot(state: &mut State, of: VolumeId, name: &str, made_ms: u64) -> Result<Act> {
    let origin = state.volumes.get(of)?.clone();
    let id = state.volumes.give_number();
    let snapshot = Some(SnapshotOf { volume: of, made_ms });
    state.volumes.expect(id, VolumeState { name: name.to_owned(), snapshot, ..origin });
    Ok(Act::Snapshot { id, of, name: name.to_owned(), made_ms })
}

/// Admits a moment with as many acts as `origins`: few wait, the tables of bounded size have room
/// for what they add, and the checkpoint of the moment has room for its pages.
fn admit(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    state: &mut State,
    origins: &[VolumeId],
) -> Result<()> {
    state.check_running()?;
    scheme.begin_moment()?;
    let limits = kernel.settings.limits;
    let acts = origins.len() as u64;
    if state.volumes.next().saturating_add(origins.len() as u32) > limits.volume_number {
        let message = "this store has given all numbers of volumes, and makes no more";
        return Err(Error::new(Kind::InvalidInput, message));
    }
    if (state.volumes.count() as u64 + acts) > limits.volumes / 2 {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a store holds at most {} volumes and snapshots", limits.volumes / 2),
        ));
    }
    let waiting = state.moments_ahead().count();
    let ahead = scheme.count_ahead(state);
    let (ranges, volumes) =
        ahead.map_or((0, 0), |ahead| (ahead.ranges.unwrap_or(0), ahead.volumes));
    let crowded = ranges + copied_ranges(state, origins) > limits.discards
        && kernel.keeps(Rule::DiscardsLimited);
    if state.moment.is_some()
        || waiting >= limits.moments
        || volumes + acts > limits.volumes
        || crowded
    {
        kernel.coverage.hit(Mark::MomentWaits);
        state.checkpoint_wanted = true;
        return Err(wait());
    }
    let needed = to_place(kernel, state, 0)
        + pages_ahead(kernel, scheme, state, 1)
        + scheme.reserve(kernel, state, &Overlay::default(), acts)
        + reserve(&kernel.geometry()) / 2;
    let zones = kernel.zones(state.releases.zone_table());
    if state.allocator.free() < needed {
        state.allocator.grow_to(needed, &zones);
    }
    if state.allocator.free() >= needed {
        return Ok(());
    }
    if state.can_reclaim() {
        state.checkpoint_wanted = true;
        return Err(wait());
    }
    Err(full())
}

/// The entries that the table of discards gets at most when the ranges of these volumes that still
/// wait are copied for other maps.
fn copied_ranges(state: &State, origins: &[VolumeId]) -> u64 {
    let tables = state.overlays.tables();
    let published = 2 * state.overlays.range_records();
    let gathered: usize = state.windows.all().map(|window| window.ranges.len()).sum();
    let of = |id: &VolumeId| {
        tables.discards.meeting(*id, 0, u64::MAX).count() as u64 + published + 2 * gathered as u64
    };
    origins.iter().map(of).sum()
}

/// The moment begins: the open window closes, and the acts see the windows up to it.
fn ask(kernel: &Kernel, state: &mut State, acts: Vec<Act>, origins: &[VolumeId]) -> Asked {
    let ranges = copied_ranges(state, origins);
    state.windows.close();
    let window = state.windows.last_closed();
    state.moments.0 += 1;
    let number = state.moments.0;
    kernel.coverage.hit(Mark::MomentAsked);
    state.moment = Some(Moment { window, number, acts, ranges });
    state.checkpoint_wanted = true;
    state.seal_moment(kernel.keeps(Rule::MomentSealsOverlay));
    Asked { number, moment: Ticket(window.0) }
}
