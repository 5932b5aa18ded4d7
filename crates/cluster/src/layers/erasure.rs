//! What a volume does before it goes: it hands the objects down that others inherit from it.
//!
//! | step | after a crash |
//! |---|---|
//! | where others inherit from it, its parent does not go | |
//! | its header says that it goes | it gets no child any more |
//! | likewise, read anew | |
//! | each child gets the objects that it lacks, see [`copy_up`](super::copy_up) | the rest is copied again |
//! | the parent of the volume knows the child | it may know of one that reads another layer: that is nothing |
//! | the volume still names that parent: read anew | likewise |
//! | the child names that parent, compared with the volume | the child reads the volume, or its parent |
//! | the volume names no parent | |
//!
//! A parent that goes itself goes first, so that nothing is handed to who hands it on already. A volume that
//! nobody inherits from waits for nobody, and gets nothing any more.
//!
//! *Two layers, one over the other, that go at one time.* The volume above may have begun to give a child the
//! volume below as its parent, and that operation may come at any time, also when whoever sent it is gone.
//! It was decided before the volume below took no more children, so that this one knows the child: it
//! gives the child's parent another stamp, which the operation does not expect. An operation that is
//! decided later finds that the volume below goes, or is gone: a lock can make its header anew, and it
//! would know the child, but the volume above names another parent by then.

use onefold_core::object::{Change, Guard, ReadPart, Refusal, Write};

use super::{
    below::{BORN, Below, CHILD, ERASING, PARENT, Parent, children, link, record_stamps},
    copy_up::CopyUp,
};
use crate::{
    format::{ObjectId, key},
    kernel::Kernel,
    names::Names,
    rules::Rule,
    session::Session,
    volume::header::{self, Bits},
};

/// How far a volume is with what others inherit from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// Nobody inherits from it.
    Down,
    /// A layer below goes first.
    Waits,
}

/// A volume that goes, and hands its objects down.
pub(crate) struct Leaving<'a> {
    session: &'a Session,
    id: u64,
    /// Removes an object of a child that went while it got the object.
    erase: &'a dyn Fn(ObjectId) -> Result<(), Refusal>,
}

impl<'a> Leaving<'a> {
    pub(crate) fn of(
        session: &'a Session,
        id: u64,
        erase: &'a dyn Fn(ObjectId) -> Result<(), Refusal>,
    ) -> Leaving<'a> {
        Leaving { session, id, erase }
    }

    fn kernel(&self) -> &'a Kernel {
        self.session.kernel()
    }

    /// Hands the objects of the volume down.
    ///
    /// # Errors
    /// The store's. `Corrupt` for an object that is lost: the volume stays.
    pub(crate) fn hand_down(&self) -> Result<Handed, Refusal> {
        let (kernel, id) = (self.kernel(), self.id);
        let parent = match Parent::read(kernel, id) {
            Err(Refusal::Missing) => return Ok(Handed::Down),
            other => other?,
        };
        // While it waits it does not say that it goes: volumes over it are still cut off.
        if let Some(parent) = parent
            && goes(kernel, parent.id)?
            && !children(kernel, id)?.is_empty()
        {
            return Ok(Handed::Waits);
        }
        set(kernel, id, (ERASING, vec![1]))?;
        let children = children(kernel, id)?;
        if let Some(parent) = parent.filter(|_| !children.is_empty())
            && goes(kernel, parent.id)?
        {
            return Ok(Handed::Waits);
        }
        for child in children {
            if kernel.keeps(Rule::LayerHandedDown) && self.hand_to(parent, child)? == Handed::Waits
            {
                return Ok(Handed::Waits);
            }
        }
        if let Some(parent) = parent {
            leave(kernel, id, parent)?;
        }
        Ok(Handed::Down)
    }

    /// Gives a child what it inherits, and the volume's parent as its own.
    fn hand_to(&self, parent: Option<Parent>, child: u64) -> Result<Handed, Refusal> {
        let (kernel, id) = (self.kernel(), self.id);
        loop {
            let seen = Child::read(kernel, child)?;
            // The child inherits nothing any more.
            let Some(inherits) = seen.parent else { return Ok(Handed::Down) };
            if inherits.id != id {
                let overtakes = kernel.keeps(Rule::OtherParentsStamped);
                if !overtakes || set_parent(kernel, child, inherits, Some(inherits))? {
                    return Ok(Handed::Down);
                }
                continue;
            }
            // One that goes itself, and that nobody inherits from, needs nothing.
            if seen.needs_nothing() {
                return Ok(Handed::Down);
            }
            if !self.copy_to(child, inherits)? {
                continue;
            }
            let next = parent
                .map(|parent| Parent { objects: parent.objects.min(inherits.objects), ..parent });
            if let Some(next) = next {
                match link(kernel, next.id, child) {
                    Ok(()) => {}
                    Err(Refusal::Mismatch) => return Ok(Handed::Waits),
                    Err(refusal) => return Err(refusal),
                }
                // What it knows by now may be a header that a lock made anew.
                match Parent::read(kernel, id) {
                    Ok(Some(now)) if now.id == next.id => {}
                    Ok(_) | Err(Refusal::Missing) => return Ok(Handed::Waits),
                    Err(refusal) => return Err(refusal),
                }
            }
            if set_parent(kernel, child, inherits, next)? {
                return Ok(Handed::Down);
            }
        }
    }

    /// Makes all objects that a child inherits from the volume its own; false when the child has another parent
    /// meanwhile, was cut shorter, or went. An object that the child lost is not replaced by the older one.
    fn copy_to(&self, child: u64, inherits: Parent) -> Result<bool, Refusal> {
        let (kernel, id) = (self.kernel(), self.id);
        let objects = Bits::read(kernel, id)?;
        let mut bits = Bits::read(kernel, child)?;
        let below = Below::read(kernel, child)?;
        let inherited = objects.all().take_while(|index| *index < inherits.objects);
        let lacked: Vec<u64> = inherited.filter(|index| !bits.has(*index)).collect();
        for (n, index) in lacked.into_iter().enumerate() {
            let object = ObjectId { volume: child, index };
            let copied = CopyUp::of(self.session, object).of_child(inherits).carry_out(&below);
            let copied = copied.and_then(|()| bits.change(kernel, child, index, true));
            // Who deleted the child may have looked for this object before it came, also where the copy failed.
            let now = Child::read(kernel, child)?;
            if now.needs_nothing() {
                (self.erase)(object)?;
            }
            if now.parent != Some(inherits) {
                return Ok(false);
            }
            copied?;
            // Each may copy all the bytes of an object.
            if n % 8 == 0 {
                Names::of(kernel).keep_filling(id)?;
            }
        }
        Ok(true)
    }
}

/// True when a layer says that it goes.
fn goes(kernel: &Kernel, layer: u64) -> Result<bool, Refusal> {
    match kernel.read_value(&header::name(layer), ERASING) {
        Ok(erasing) => Ok(!erasing.is_empty()),
        // It went before it knew the volume over it, which then never got a name, nor a child.
        Err(Refusal::Missing) => Ok(false),
        Err(refusal) => Err(refusal),
    }
}

/// What the header of a child says.
struct Child {
    parent: Option<Parent>,
    /// The volume was made, and is not gone.
    is_there: bool,
    /// It goes, and nobody may read it.
    goes_alone: bool,
}

impl Child {
    fn read(kernel: &Kernel, child: u64) -> Result<Child, Refusal> {
        let keys = [PARENT, BORN, ERASING].map(<[u8]>::to_vec).to_vec();
        let parts = vec![ReadPart::Keys(keys), ReadPart::Page(vec![CHILD], 1)];
        let answer = match kernel.read_one(&header::name(child), parts) {
            Err(Refusal::Missing) => {
                return Ok(Child { parent: None, is_there: false, goes_alone: false });
            }
            other => other?,
        };
        let found = answer.pairs(0).0;
        let value = |key: &[u8]| found.iter().find(|(name, _)| name == key).map(|(_, value)| value);
        let parent = value(PARENT).map(|value| Parent::decode(child, value)).transpose()?;
        let has_children = answer.pairs(1).0.iter().any(|(key, _)| key.first() == Some(&CHILD));
        let is_there = value(BORN).is_some();
        Ok(Child { parent, is_there, goes_alone: value(ERASING).is_some() && !has_children })
    }

    /// True when nobody will ever read what it holds.
    fn needs_nothing(&self) -> bool {
        !self.is_there || self.goes_alone
    }
}

/// Changes the parent of a volume, with a new stamp; false when it was changed meanwhile, perhaps by this
/// operation, whose reply was lost.
fn set_parent(
    kernel: &Kernel,
    volume: u64,
    old: Parent,
    new: Option<Parent>,
) -> Result<bool, Refusal> {
    record_stamps(kernel)?;
    let change = match new {
        Some(new) => Change::SetOmap(vec![(PARENT.to_vec(), new.stamped(kernel).encode())]),
        None => Change::DropOmap(vec![PARENT.to_vec()]),
    };
    let op = Write {
        object: header::name(volume),
        guards: vec![Guard::Exists, Guard::Omap(PARENT.to_vec(), old.encode())],
        changes: vec![change],
    };
    match kernel.until_answered(&op) {
        Ok(_) => Ok(true),
        Err(Refusal::Mismatch | Refusal::Missing) => Ok(false),
        Err(refusal) => Err(refusal),
    }
}

/// The volume reads its parent no more.
fn leave(kernel: &Kernel, id: u64, parent: Parent) -> Result<(), Refusal> {
    for (volume, key) in [(id, PARENT.to_vec()), (parent.id, key::numbered(CHILD, id))] {
        let op = Write {
            object: header::name(volume),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(vec![key])],
        };
        match kernel.until_answered(&op) {
            Ok(_) | Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

fn set(kernel: &Kernel, id: u64, (key, value): (&[u8], Vec<u8>)) -> Result<(), Refusal> {
    let op = Write {
        object: header::name(id),
        guards: vec![Guard::Exists],
        changes: vec![Change::SetOmap(vec![(key.to_vec(), value)])],
    };
    match kernel.until_answered(&op) {
        Ok(_) | Err(Refusal::Missing) => Ok(()),
        Err(refusal) => Err(refusal),
    }
}
