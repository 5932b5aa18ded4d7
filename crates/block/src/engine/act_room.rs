//! Room for acts: whether a moment may begin, and what clients leave alone while one that is asked for
//! waits for it.

use onefold_core::{Error, Kind, Result, VolumeId};

use super::{
    admission::{full, wait},
    domain_room::kept,
};
use crate::{
    coverage::Mark,
    kernel::{Kernel, Place, Room, State},
    overlay::Overlay,
    rules::Rule,
    scheme::{
        room::{pages_ahead, reserve, to_place},
        verbs::Scheme,
    },
};

/// Who asks for acts.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'e> {
    pub(crate) kernel: &'e Kernel,
    pub(crate) scheme: &'e dyn Scheme,
    /// Its place, if it asks until it is admitted.
    pub(crate) place: Option<Place>,
}

/// What an act waits for.
enum WaitsFor {
    Nothing,
    /// Other moments, or entries of the catalogue: clients take neither.
    Moments,
    Room(Room),
}

/// Admits a moment whose acts copy the maps `origins` and make so many entries at most: few wait,
/// the tables of bounded size have room for what they add, and the checkpoint of the moment has room
/// for its pages.
pub(crate) fn admit(
    asking: Asking<'_>,
    state: &mut State,
    origins: &[VolumeId],
    entries: usize,
) -> Result<()> {
    admit_changes(asking, state, origins, entries, &Overlay::default())
}

/// The same of a moment whose acts change addresses, too.
pub(crate) fn admit_changes(
    asking: Asking<'_>,
    state: &mut State,
    origins: &[VolumeId],
    entries: usize,
    changes: &Overlay,
) -> Result<()> {
    let Asking { kernel, place, .. } = asking;
    let found = look(asking, state, origins, entries, changes);
    if let Some(place) = place {
        match &found {
            Ok(WaitsFor::Room(room)) => state.act_turn.refused(place, *room, kernel.progress()),
            Ok(WaitsFor::Nothing) => state.act_turn.admitted(place, kernel.progress()),
            Ok(WaitsFor::Moments) | Err(_) => state.act_turn.waits_no_more(place),
        }
    }
    match found? {
        WaitsFor::Nothing => Ok(()),
        WaitsFor::Moments | WaitsFor::Room(_) => {
            state.checkpoint_wanted = true;
            Err(wait())
        }
    }
}

fn look(
    asking: Asking<'_>,
    state: &mut State,
    origins: &[VolumeId],
    entries: usize,
    changes: &Overlay,
) -> Result<WaitsFor> {
    let Asking { kernel, scheme, place } = asking;
    state.check_running()?;
    scheme.begin_moment()?;
    let limits = kernel.settings.limits;
    let acts = entries as u64;
    if state.volumes.next().saturating_add(entries as u32) > limits.volume_number {
        let message = "this store has given all numbers of volumes, and makes no more";
        return Err(Error::new(Kind::InvalidInput, message));
    }
    if acts > 0 && (state.volumes.count() as u64 + acts) > limits.volumes / 2 {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a store holds at most {} volumes and snapshots", limits.volumes / 2),
        ));
    }
    let waiting = state.moments_ahead().count();
    let ahead = scheme.count_ahead(state);
    let (ranges, volumes) =
        ahead.map_or((0, 0), |ahead| (ahead.ranges.unwrap_or(0), ahead.volumes));
    let many = waiting >= limits.moments && kernel.keeps(Rule::MomentsLimited);
    if state.moment.is_some() || many || volumes + acts > limits.volumes {
        kernel.coverage.hit(Mark::MomentWaits);
        return Ok(WaitsFor::Moments);
    }
    let crowded = ranges + copied_ranges(state, origins) > limits.discards;
    if crowded && kernel.keeps(Rule::DiscardsLimited) {
        kernel.coverage.hit(Mark::MomentWaits);
        return Ok(WaitsFor::Room(Room::Ranges));
    }
    let own = scheme.reserve(kernel, state, changes, acts.max(1))
        + reserve(&kernel.geometry()) / 2
        + kept(kernel, state, None);
    let needed = to_place(kernel, state, 0) + pages_ahead(kernel, scheme, state, 1) + own;
    let zones = kernel.zones(state.releases.zone_table());
    if state.allocator.free() < needed {
        state.allocator.grow_to(needed, &zones);
    }
    if state.allocator.free() >= needed {
        return Ok(WaitsFor::Nothing);
    }
    // Clients that trim all the time would make this wait for ever: there is always something to
    // reclaim, be it a trim of what a snapshot holds too.
    let in_vain = place.is_some_and(|place| state.act_turn.was_in_vain(place));
    kernel.coverage.add(Mark::ActInVain, usize::from(in_vain));
    let wait = state.can_reclaim() && !in_vain;
    if wait { Ok(WaitsFor::Room(Room::Blocks(own))) } else { Err(full()) }
}

/// The entries that the table of discards gets at most when the ranges of these volumes that still
/// wait are copied for other maps.
pub(crate) fn copied_ranges(state: &State, origins: &[VolumeId]) -> u64 {
    let tables = state.overlays.tables();
    let published = 2 * state.overlays.range_records();
    let gathered: usize = state.windows.all().map(|window| window.ranges.len()).sum();
    let of = |id: &VolumeId| {
        tables.discards.meeting(*id, 0, u64::MAX).count() as u64 + published + 2 * gathered as u64
    };
    origins.iter().map(of).sum()
}
