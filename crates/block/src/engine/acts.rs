//! Snapshots, clones, rollbacks and receives: requests for acts, which the checkpoint of their moment
//! performs.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use onefold_core::{Error, Kind, Result, Ticket, VolumeId, VolumeLimits};

use super::act_room::{Asking, admit, admit_changes, copied_ranges};
use crate::{
    coverage::Mark,
    format::{catalogue::NAME_MAX, record::WindowNumber},
    kernel::{Kernel, Receiving, SnapshotOf, State, VolumeState},
    moments::{Act, Moment, Receive},
    overlay::Overlay,
    rules::Rule,
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
    asking: Asking<'_>,
    wanted: &[(VolumeId, String)],
    made_ms: u64,
) -> Result<(Vec<VolumeId>, Asked)> {
    let kernel = asking.kernel;
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
    admit(asking, &mut state, &of, wanted.len())?;
    let mut acts = Vec::with_capacity(wanted.len());
    for (of, name) in wanted {
        acts.push(expect_snapshot(&mut state, *of, name, made_ms)?);
    }
    let ids = acts.iter().map(Act::id).collect();
    Ok((ids, ask(kernel, &mut state, acts, &of)))
}

/// Makes a volume that holds what a volume or a snapshot holds.
pub(crate) fn clone_volume(
    asking: Asking<'_>,
    of: VolumeId,
    name: &str,
    made_ms: u64,
) -> Result<(VolumeId, Asked)> {
    let kernel = asking.kernel;
    let mut state = kernel.state.lock();
    let origin = state.volumes.alive(of)?.clone();
    state.volumes.check_new_name(name)?;
    state.volumes.check_size(origin.blocks, None)?;
    admit(asking, &mut state, &[of], 1)?;
    let id = state.volumes.give_number();
    state.volumes.expect(id, VolumeState::volume(name, origin));
    if !kernel.keeps(Rule::ActsSeenWhenTold) {
        state.volumes.show_expected();
    }
    let act = Act::Clone { id, of, name: name.to_owned(), made_ms, replica: false };
    Ok((id, ask(kernel, &mut state, vec![act], &[of])))
}

/// Gives a volume what one of its snapshots holds. With `keep`, a snapshot of this name takes what
/// it held before, in the same moment.
pub(crate) fn rollback(
    asking: Asking<'_>,
    volume: VolumeId,
    to: VolumeId,
    keep: Option<&str>,
    made_ms: u64,
) -> Result<(Option<VolumeId>, Asked)> {
    let kernel = asking.kernel;
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
    admit(asking, &mut state, &[volume, to], 2)?;
    let mut acts = Vec::new();
    if let Some(name) = keep {
        acts.push(expect_snapshot(&mut state, volume, name, made_ms)?);
    }
    let kept = acts.first().map(Act::id);
    let id = state.volumes.give_number();
    state.volumes.roll_back(volume);
    acts.push(Act::Rollback { id, volume, to, replica: false });
    Ok((kept, ask(kernel, &mut state, acts, &[volume, to])))
}

/// The snapshots that are being received.
pub(crate) fn receiving(kernel: &Kernel) -> Vec<(VolumeId, VolumeState)> {
    let state = kernel.state.lock();
    state.volumes.receiving().map(|(id, receive)| (id, receive.clone())).collect()
}

/// A snapshot begins to be received.
pub(crate) fn receive(asking: Asking<'_>, what: Receive) -> Result<(VolumeId, Asked)> {
    let kernel = asking.kernel;
    let mut state = kernel.state.lock();
    check_snapshot_name(&what.snapshot)?;
    if what.name().len() > NAME_MAX {
        let message = "the names of the volume and the snapshot are longer than 254 bytes together";
        return Err(Error::new(Kind::InvalidInput, message));
    }
    match what.base {
        None => state.volumes.check_new_name(&what.volume).map_err(|taken| match taken.kind() {
            Kind::Exists => Error::new(
                Kind::Exists,
                format!(
                    "there is a volume '{}' already: send what changed since a snapshot that both \
                     have, or receive under another name",
                    what.volume
                ),
            ),
            _ => taken,
        })?,
        Some(base) => check_base(kernel, &state, base, &what)?,
    }
    let domain = match what.base {
        Some(base) => state.volumes.alive(base)?.domain,
        None => state.volumes.check_domain(what.domain).map(|()| what.domain)?,
    };
    state.volumes.check_size(what.blocks, None)?;
    let origins: Vec<VolumeId> = what.base.into_iter().collect();
    admit(asking, &mut state, &origins, 1)?;
    let id = state.volumes.give_number();
    let blocks = match what.base {
        Some(base) => state.volumes.get(base)?.blocks.max(what.blocks),
        None => what.blocks,
    };
    let expected = VolumeState {
        name: what.name(),
        blocks,
        no_dedup: what.no_dedup.clone(),
        limits: VolumeLimits::default(),
        quota: 0,
        domain,
        snapshot: None,
        receiving: Some(Receiving {
            guid: what.guid,
            base: what.base,
            cursor: 0,
            heard_ms: what.now_ms,
        }),
        replica_of: None,
    };
    state.volumes.expect(id, expected);
    let asked = ask(kernel, &mut state, vec![Act::Receive { id, what }], &origins);
    Ok((id, asked))
}

/// Fails unless a volume has the base, and still holds it.
fn check_base(kernel: &Kernel, state: &State, base: VolumeId, what: &Receive) -> Result<()> {
    let origin = state.volumes.get(base)?.snapshot;
    let origin = origin.ok_or_else(|| Error::new(Kind::InvalidInput, "the base is no snapshot"))?;
    if origin.guid != what.base_guid && kernel.keeps(Rule::BaseCompared) {
        let message = "the stream is to be applied to another snapshot than this one";
        return Err(Error::new(Kind::InvalidInput, message));
    }
    let volume = state.volumes.get(origin.volume)?;
    if volume.replica_of != Some(base) && !what.rollback {
        // A stream that was sent twice.
        let is_here = |one: &VolumeState| {
            let own = one.snapshot.filter(|own| own.volume == origin.volume);
            one.name == what.snapshot && own.is_some_and(|own| own.guid == what.guid)
        };
        if state.volumes.iter().any(|(_, one)| is_here(one)) {
            let here = format!("{}@{}", volume.name, what.snapshot);
            let message = format!("the snapshot '{here}' is there already, whole");
            return Err(Error::new(Kind::Exists, message));
        }
        let message = format!(
            "the volume '{}' holds something else than its snapshot '{}', to which the stream is to \
             be applied: with --rollback it is given up",
            volume.name,
            state.volumes.get(base)?.name
        );
        return Err(Error::new(Kind::InvalidInput, message));
    }
    check_snapshot(kernel, state, origin.volume, &what.snapshot, 0)
}

/// Notes that all blocks before `cursor` were written to what is being received, or are `lost`.
pub(crate) fn receive_cursor(
    asking: Asking<'_>,
    id: VolumeId,
    cursor: u64,
    lost: &[Range<u64>],
    now_ms: u64,
) -> Result<Asked> {
    let kernel = asking.kernel;
    let lost = if kernel.keeps(Rule::LostWithCursor) { lost } else { &[] };
    let receive = check_receiving(&kernel.state.lock(), id)?;
    // Many blocks take long: nobody waits for it.
    let changes = losses(&receive, id, lost)?;
    let mut state = kernel.state.lock();
    check_receiving(&state, id)?;
    admit_changes(asking, &mut state, &[], 0, &changes)?;
    let acts = lose(id, lost).into_iter().chain([Act::Cursor { id, cursor, now_ms }]).collect();
    Ok(ask_changes(asking, &mut state, acts, &[], &changes))
}

/// The act that loses blocks of what is being received.
fn lose(id: VolumeId, lost: &[Range<u64>]) -> Option<Act> {
    (!lost.is_empty()).then(|| Act::Lose { id, ranges: lost.to_vec() })
}

/// The changes that it is, to be admitted: in which window they belong nobody asks there.
fn losses(receive: &VolumeState, id: VolumeId, lost: &[Range<u64>]) -> Result<Overlay> {
    let mut changes = Overlay::default();
    for range in lost {
        if range.end > receive.blocks {
            let message = "blocks are lost beyond the end of what is being received";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        changes.lose(id, range.clone(), WindowNumber(0));
    }
    Ok(changes)
}

/// The times at the end of a receive, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The time here.
    pub now_ms: u64,
    /// When the sender made the snapshot.
    pub made_ms: u64,
}

/// What was received, of so many blocks of which some are `lost` since the last cursor, becomes a
/// snapshot, and its volume, whose number is returned, holds it. With `rollback` the volume may have
/// been changed meanwhile.
pub(crate) fn received(
    asking: Asking<'_>,
    id: VolumeId,
    blocks: u64,
    lost: &[Range<u64>],
    rollback: bool,
    times: Times,
) -> Result<(VolumeId, Asked)> {
    let Times { now_ms, made_ms } = times;
    let kernel = asking.kernel;
    let lost = if kernel.keeps(Rule::LostWithEnd) { lost } else { &[] };
    let receive = check_receiving(&kernel.state.lock(), id)?;
    // Many blocks take long: nobody waits for it.
    let changes = losses(&receive, id, lost)?;
    let mut state = kernel.state.lock();
    let receive = check_receiving(&state, id)?;
    let (volume, name) = receive.received_name();
    let (volume, name) = (volume.to_owned(), name.to_owned());
    let into = state.volumes.receives_into(&receive);
    let base = receive.receiving.and_then(|receiving| receiving.base);
    if let Some(into) = into {
        let now = state.volumes.get(into)?;
        if now.replica_of.is_none() || now.replica_of != base {
            if !rollback {
                let message = "the volume was changed while its snapshot was being received";
                return Err(Error::new(Kind::InvalidInput, message));
            }
            if now.replica_of.is_none() {
                state.volumes.check_writable(into)?;
            }
        }
    }
    let origins: Vec<VolumeId> = into.into_iter().chain([id]).collect();
    admit_changes(asking, &mut state, &origins, 2, &changes)?;
    let other = state.volumes.give_number();
    let mut acts: Vec<Act> = lose(id, lost).into_iter().collect();
    acts.push(Act::Received { id, volume: into.unwrap_or(other), name, blocks, made_ms });
    match into {
        Some(into) => {
            state.volumes.roll_back(into);
            acts.push(Act::Rollback { id: other, volume: into, to: id, replica: true });
        }
        None => {
            let made = VolumeState { blocks, replica_of: Some(id), ..receive };
            state.volumes.expect(other, VolumeState::volume(&volume, made));
            acts.push(Act::Clone {
                id: other,
                of: id,
                name: volume,
                made_ms: now_ms,
                replica: true,
            });
        }
    }
    Ok((into.unwrap_or(other), ask_changes(asking, &mut state, acts, &origins, &changes)))
}

fn check_receiving(state: &State, id: VolumeId) -> Result<VolumeState> {
    let receive = state.volumes.alive(id)?;
    if receive.receiving.is_some() {
        return Ok(receive.clone());
    }
    Err(Error::new(Kind::InvalidInput, "the snapshot was received already"))
}

/// Makes a replica a volume that clients may change.
pub(crate) fn promote(asking: Asking<'_>, id: VolumeId) -> Result<Asked> {
    let kernel = asking.kernel;
    let mut state = kernel.state.lock();
    if state.volumes.alive(id)?.replica_of.is_none() {
        return Err(Error::new(Kind::InvalidInput, "the volume is no replica"));
    }
    if state.volumes.received_for(id) {
        return Err(Error::new(
            Kind::InvalidInput,
            "a snapshot of the volume is being received: go on with that, or give it up by \
             `onefold receive --abort`",
        ));
    }
    admit(asking, &mut state, &[], 0)?;
    Ok(ask(kernel, &mut state, vec![Act::Promote { id }], &[]))
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
    if state.volumes.alive(of)?.snapshot.is_some() {
        return Err(Error::new(
            Kind::InvalidInput,
            "a snapshot of a snapshot would be the same; clone it instead",
        ));
    }
    check_snapshot_name(name)?;
    let most = kernel.settings.limits.snapshots;
    let there = (state.volumes.snapshots_ahead(of) + beside) as u64;
    if there >= most && kernel.keeps(Rule::SnapshotsLimited) {
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
    let snapshot = Some(SnapshotOf { volume: of, made_ms, guid: [0; 16] });
    let expected = VolumeState { snapshot, ..VolumeState::volume(name, origin) };
    state.volumes.expect(id, expected);
    Ok(Act::Snapshot { id, of, name: name.to_owned(), made_ms })
}

/// As [`ask`], of acts that change addresses, too.
fn ask_changes(
    asking: Asking<'_>,
    state: &mut State,
    acts: Vec<Act>,
    origins: &[VolumeId],
    changes: &Overlay,
) -> Asked {
    let Asking { kernel, scheme, .. } = asking;
    let pages = if changes.is_empty() { 0 } else { scheme.reserve(kernel, state, changes, 0) };
    kernel.coverage.add(Mark::BlocksLost, changes.changed());
    begin(kernel, state, acts, origins, pages)
}

fn ask(kernel: &Kernel, state: &mut State, acts: Vec<Act>, origins: &[VolumeId]) -> Asked {
    begin(kernel, state, acts, origins, 0)
}

/// The moment begins: the open window closes, and the acts see the windows up to it.
fn begin(
    kernel: &Kernel,
    state: &mut State,
    acts: Vec<Act>,
    origins: &[VolumeId],
    pages: u64,
) -> Asked {
    let ranges = copied_ranges(state, origins);
    let early = |act: &Act| match act {
        Act::Cursor { .. } => !kernel.keeps(Rule::CursorBehindData),
        Act::Received { .. } => !kernel.keeps(Rule::ReceivedAfterData),
        _ => false,
    };
    if !acts.iter().any(early) {
        state.windows.close();
    }
    let window = state.windows.last_closed();
    state.moments.0 += 1;
    let number = state.moments.0;
    kernel.coverage.hit(Mark::MomentAsked);
    state.moment = Some(Moment { window, number, acts, ranges, pages });
    state.checkpoint_wanted = true;
    state.seal_moment(kernel.keeps(Rule::MomentSealsOverlay));
    Asked { number, moment: Ticket(window.0) }
}
