//! The data keys of a sealed store change while nobody works on it, and the changes are ended; perhaps with a
//! crash in the middle. From a change on nothing is sealed by the older key, and nobody needs it when it is
//! erased: the second reading, and all that clients wrote, tell.

use std::sync::Arc;

use onefold_core::Disk;
use onefold_seal::{Keys, Secret, Use, observer};
use onefold_testbed::Rng;

use super::keys::{STATES_OF_CHANGE, STATES_OF_OPENING, areas, breach, put};
use crate::{
    block::{
        keys::{OWNER, keys_in},
        run::Sim,
        subject::{Generations, Subject},
    },
    checker::{Checker, Failure},
};

/// Calls of the disk within which a crash comes.
const CRASH_WITHIN: [u64; 4] = [9, 25, 80, 300];

/// More states than the end of a change makes durable.
const STATES_OF_END: u64 = 10_000;

/// How data keys change.
pub(crate) struct Rotations {
    rng: Rng,
}

impl Rotations {
    pub(crate) fn new(seed: u64) -> Rotations {
        Rotations { rng: Rng::new(seed ^ 0x726f_7461_7465_0094) }
    }
}

/// What is done to a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Rotate(u32),
    Finish(u32),
}

/// The generation of a domain, and whether it has two data keys.
type State = (u32, bool);

fn state_of(of: Option<&Generations>) -> State {
    of.map_or((0, false), |of| (of.all.last().copied().unwrap_or(0), of.has_older))
}

fn state_in(keys: &Keys, number: u32) -> State {
    (keys.generation(number).unwrap_or(0), keys.older(number).is_some())
}

impl<S: Subject> Sim<S> {
    /// A data key changes, or a change is ended, sometimes.
    pub(super) fn change_data_keys(&mut self) -> Result<(), Failure> {
        let mut domains = self.living_domains();
        domains.push(0);
        let Some(rotations) = &mut self.rotations else { return Ok(()) };
        if rotations.rng.percent(40) {
            return Ok(());
        }
        let Some(&number) = rotations.rng.pick(&domains) else { return Ok(()) };
        let before = state_of(self.params.options.generations.get(&number));
        let (_, has_older) = before;
        // A third key is refused, now and then.
        let rotates = if has_older { 10 } else { 90 };
        let change = match rotations.rng.percent(rotates) {
            true => Change::Rotate(number),
            false => Change::Finish(number),
        };
        let within = CRASH_WITHIN[rotations.rng.below(4) as usize];
        let crash = rotations.rng.percent(40).then(|| rotations.rng.below(within));
        if let Some(secrets) = &mut self.secrets {
            secrets.untold(match change {
                Change::Rotate(_) => 2 * STATES_OF_CHANGE + STATES_OF_OPENING,
                Change::Finish(_) => STATES_OF_END,
            });
        }
        let old = areas(&self.disk.view());
        if let Some(calls) = crash {
            self.disk.arm_crash(calls);
        }
        let (disk, clock) = (Arc::clone(&self.disk) as Arc<dyn Disk>, Arc::clone(&self.clock) as _);
        let options = &self.params.options;
        let done = match change {
            Change::Rotate(number) => S::rotate_data_key(disk, clock, options, number).map(|()| 0),
            Change::Finish(number) => S::finish_data_key(disk, clock, options, number),
        };
        let cut_off = self.disk.is_down();
        self.disk.disarm_crash();
        self.say(|| format!("{change:?}: {done:?}, cut off: {cut_off}"));
        let refused = match change {
            Change::Rotate(_) => has_older,
            Change::Finish(_) => !has_older,
        };
        let left = match done {
            _ if cut_off => {
                self.disk.power_cycle();
                self.reach.hit("crash: in a change of data keys");
                None
            }
            Ok(_) if refused => {
                return Err(breach(format!("{change:?} was to be refused: {before:?}")));
            }
            Ok(left) => Some(left),
            Err(_) if refused => {
                self.reach.hit("data keys: a third key was refused, or an end of nothing");
                Some(1)
            }
            Err(error) => {
                return Err(Failure::new(Checker::Unexplained, format!("data keys: {error:?}")));
            }
        };
        if !cut_off {
            // The end reads all that is free, which is no part of the next recovery.
            self.disk.next_session();
        }
        if !cut_off && !self.disk.unflushed().is_empty() {
            return Err(breach("a change of data keys was told as done, and is not durable"));
        }
        self.data_key_changed((change, before), left, &old)
    }

    /// Whoever copied an older key, which a copy of the key area lacks now, finds nothing for it in what is free.
    fn free_is_overwritten(&mut self, number: u32, before: State) -> Result<(), Failure> {
        let erased = (before.0, false);
        let lacks =
            |area: &Vec<u8>| keys_in(area).is_ok_and(|keys| state_in(&keys, number) == erased);
        if !before.1 || !areas(&self.disk.view()).iter().any(lacks) {
            return Ok(());
        }
        let found = S::forgotten(&self.disk, &self.params.options).map_err(breach)?;
        if let Some(at) = found.blocks.first() {
            let more = found.blocks.len() - 1;
            let why = format!(
                "a data key is erased, and block {at} and {more} others are free and hold something"
            );
            return Err(breach(why));
        }
        if let Some(at) = found.fingerprints.first() {
            let why =
                format!("a data key is erased, and block {at} has no reference and a fingerprint");
            return Err(breach(why));
        }
        self.reach.hit("data keys: what is free was overwritten");
        Ok(())
    }

    /// Looks what became of a change, which left so much under the older key; `None` when it was cut off.
    fn data_key_changed(
        &mut self,
        (change, before): (Change, State),
        left: Option<u64>,
        old: &[Vec<u8>; 2],
    ) -> Result<(), Failure> {
        if let Change::Finish(number) = change {
            self.free_is_overwritten(number, before)?;
        }
        let copy = self.copy_of_disk();
        if !self.opens(&copy, OWNER)? {
            return Err(breach("the owner can't open after a change of data keys"));
        }
        let now = areas(&copy.view());
        if now[0] != now[1] || left.is_some() && areas(&self.disk.view()) != now {
            return Err(breach("a change of data keys left two different copies"));
        }
        let keys = keys_in(&now[0]).map_err(|error| breach(format!("{error:?}")))?;
        let (Change::Rotate(number) | Change::Finish(number)) = change;
        let is = state_in(&keys, number);
        // Generations rise through all domains.
        let all = self.params.options.generations.values().flat_map(|of| &of.all);
        let highest = all.max().copied().unwrap_or(0);
        let wanted = match change {
            Change::Rotate(_) => (highest + 1, true),
            Change::Finish(_) => (before.0, false),
        };
        let happened = is == wanted;
        let is_right = match left {
            Some(0) => happened,
            Some(_) => is == before,
            None => happened || is == before,
        };
        if !is_right {
            return Err(breach(format!("{change:?}, {left:?} left: {before:?} became {is:?}")));
        }
        if matches!((change, left), (Change::Finish(_), Some(1..))) && before.1 {
            self.reach.hit("data keys: something is left under an older one");
        }
        if !happened || is == before {
            return Ok(());
        }
        let generations = self.params.options.generations.entry(number).or_default();
        generations.has_older = is.1;
        if before.0 != is.0 {
            generations.all.push(is.0);
        }
        match change {
            Change::Rotate(_) => {
                self.reach.hit("data keys: one was changed");
                let older = keys.older(number).map_or_else(Vec::new, working_keys);
                older.iter().for_each(observer::retire);
            }
            Change::Finish(_) => self.reach.hit("data keys: an older one was erased"),
        }
        if left.is_some() {
            // Whoever holds the disk puts the old key area back.
            let done = put(&copy, 0, &old[0]).and_then(|()| put(&copy, 1, &old[0]));
            done.map_err(|error| breach(format!("{error:?}")))?;
            if self.opens(&copy, OWNER)? {
                return Err(breach("a data key is back by an old key area"));
            }
            self.reach.hit("data keys: an old key area was refused");
        }
        Ok(())
    }
}

/// The keys that seal data by a data key.
fn working_keys(key: &Secret) -> Vec<Secret> {
    [Use::BLOCKS, Use::PAYLOADS].map(|purpose| key.derive(purpose)).into()
}
