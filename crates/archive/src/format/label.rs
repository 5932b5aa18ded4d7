//! The label: what kind of archive this is, and which snapshot and log are true. Two places,
//! written by turns.

use onefold_core::{Algorithm, Error, File, Files, Kind, Result};
use onefold_seal::TAG_BYTES;

use super::{
    bytes::{Reader, Writer, corrupt},
    class::{Class, Rad},
    damage::is_damage,
    names::LABEL,
    parameters::{Chunking, Compression},
    sealing::{Role, What},
};
use crate::format::Identity;

/// Bytes of each place.
pub(crate) const LABEL_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"ONEFARCH";

const VERSION: u32 = 1;

/// The version of an archive with late encoding: programs that do not know it must not open it.
const VERSION_LATE: u32 = 2;

/// The version of an archive whose label says by bits what a program must know.
const VERSION_FEATURES: u32 = 3;

/// The version of a sealed archive.
const VERSION_SEALED: u32 = 4;

/// Where a sealed archive has the number of its key area, and the tag over all before it.
const KEYS_AT: usize = FEATURES_AT + 24;
const TAG_AT: usize = LABEL_BYTES - 8 - TAG_BYTES;

/// Where the three sets of feature bits are: needed to read, needed to write, safe to ignore.
const FEATURES_AT: usize = 136;

/// Needed to read: chunks are encoded late.
const FEATURE_LATE: u64 = 1;

/// Needed to read: there may be snapshots of directories.
const FEATURE_TREES: u64 = 2;

/// Needed to read: snapshots of the tables name leaves in the file `tables`.
const FEATURE_LEAVES: u64 = 4;

/// Needed to read: fingerprints are of the algorithm that the label names.
const FEATURE_FINGERPRINT: u64 = 8;

/// Needed to read: volumes may be clones, whose maps share pages.
const FEATURE_CLONES: u64 = 16;

/// Needed to read: leaves of the container table are read when they are looked at, so a snapshot says
/// what else would be found by reading all of them, and which pages wait for readers.
const FEATURE_ON_DEMAND: u64 = 32;

/// Needed to read: there may be domains beside the first one, which containers, streams and snapshots name.
const FEATURE_DOMAINS: u64 = 64;

/// Needed to read: frames and snapshots of the tables are signed by the key of a role, and containers are
/// sealed for who may read.
const FEATURE_ROLES: u64 = 128;

/// Of checkouts between two days only: domains might have data keys that took the place of older ones, of which
/// something stayed under the store key.
const FEATURE_DATA_KEYS_BEFORE: u64 = 256;

/// Needed to read: domains may have data keys that took the place of older ones.
const FEATURE_DATA_KEYS: u64 = 512;

/// Needed to read: volumes may be of domains beside the first one.
const FEATURE_VOLUME_DOMAINS: u64 = 1024;

/// Needed to read: containers may be longer than the steps that they need.
const FEATURE_PADDED: u64 = 2048;

/// Needed to change it: new chunks of streams are gathered, sorted and encoded at once. Whoever does
/// not know it would write copies first.
const FEATURE_GATHERED: u64 = 1;

/// Needed to change it: usage counts are in pages. Whoever does not know them would find no counts, and
/// count all references anew each time.
const FEATURE_COUNTS_IN_PAGES: u64 = 2;

/// Needed to change it: snapshots of the tables have a hash of all changes, and the file `heads` the hashes
/// of the last ones. Whoever does not know them would write snapshots without.
const FEATURE_HEADS: u64 = 4;

/// The fields of an archive's label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The archive's id.
    pub id: [u8; 16],
    /// Keys fingerprints and checksums.
    pub secret: [u8; 32],
    /// The id of this directory.
    pub node: [u8; 16],
    /// How streams are cut.
    pub chunking: Chunking,
    /// How containers are compressed.
    pub compression: Compression,
    /// Bytes of a segment file.
    pub segment_bytes: u64,
    /// Grows with each label; its last bit names the place.
    pub generation: u64,
    /// The number of the snapshot that counts, and of the log that begins behind it.
    pub snapshot: u64,
    /// Nodes, and columns of data and of parity in a stripe.
    pub spread: [u8; 3],
    /// Encoding by reference counts, if that is how chunks are placed.
    pub late: Option<Rad>,
    /// There may be snapshots of directories.
    pub trees: bool,
    /// A checkpoint writes the leaves of the tables that changed.
    pub leaves: bool,
    /// Leaves of the container table are read when they are looked at.
    pub on_demand: bool,
    /// Volumes may be clones of others.
    pub clones: bool,
    /// Counting writes the pages of usage counts that changed.
    pub counts_in_pages: bool,
    /// There may be domains beside the first one.
    pub domains: bool,
    /// Snapshots of the tables prove from which histories they descend; of sealed archives only.
    pub heads: bool,
    /// Keys have roles; of sealed archives with heads only.
    pub roles: bool,
    /// Data keys may have taken the place of older ones; of sealed archives only.
    pub data_keys: bool,
    /// Volumes may be of domains beside the first one; of archives that have domains and clones only.
    pub volume_domains: bool,
    /// Containers take Padmé's numbers of steps; of sealed archives only.
    pub pads: bool,
    /// How chunks are fingerprinted, with the secret as key.
    pub fingerprint: Algorithm,
    /// The archive is sealed: the number of its key area, as far as who wrote the label knew it.
    pub sealed: Option<u64>,
    /// Feature bits that this program does not know, and with which it reads the archive.
    pub newer: Newer,
}

/// Feature bits of newer programs, which this one keeps as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newer {
    /// Needed to change the archive.
    pub to_write: u64,
    /// Safe to ignore.
    pub ignored: u64,
}

/// The kinds of tables that an archive has, by its label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Chunks are encoded late.
    pub late: bool,
    /// There may be snapshots of directories.
    pub trees: bool,
    /// A checkpoint writes the leaves of the tables that changed.
    pub leaves: bool,
    /// Leaves of the container table are read when they are looked at.
    pub on_demand: bool,
    /// Volumes may be clones of others.
    pub clones: bool,
    /// Counting writes the pages of usage counts that changed.
    pub counts_in_pages: bool,
    /// There may be domains beside the first one.
    pub domains: bool,
    /// Snapshots of the tables prove from which histories they descend; of sealed archives only.
    pub heads: bool,
    /// Keys have roles; of sealed archives with heads only.
    pub roles: bool,
    /// Data keys may have taken the place of older ones; of sealed archives only.
    pub data_keys: bool,
    /// Volumes may be of domains beside the first one; of archives that have domains and clones only.
    pub volume_domains: bool,
}

impl Kinds {
    /// All that `create` sets and that an older archive, sealed or not, can get without its data written
    /// again.
    #[must_use]
    pub fn upgraded(self, is_sealed: bool) -> Kinds {
        Kinds {
            late: self.late,
            trees: true,
            // A signature covers all tables of a snapshot: they lie in it.
            leaves: !self.roles,
            on_demand: !self.roles,
            clones: true,
            counts_in_pages: true,
            domains: self.domains,
            heads: is_sealed,
            roles: self.roles,
            data_keys: self.data_keys,
            volume_domains: self.domains,
        }
    }
}

/// The content of one of the label's places.
pub enum Found {
    /// A label.
    Good(Label),
    /// A label that is damaged.
    Bad(Error),
    /// No label.
    Foreign,
}

impl Label {
    /// The identity for checksums.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::new(self.id, &self.secret)
    }

    /// The place of this generation, in bytes.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.generation % 2 * LABEL_BYTES as u64
    }

    /// Columns of data that segments of a class have.
    #[must_use]
    pub fn data(&self, class: Class) -> u8 {
        self.late.and_then(|rad| rad.data(class)).unwrap_or(self.spread[1])
    }

    /// The kinds of tables that the archive has.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        Kinds {
            late: self.late.is_some(),
            trees: self.trees,
            leaves: self.leaves,
            on_demand: self.on_demand,
            clones: self.clones,
            counts_in_pages: self.counts_in_pages,
            domains: self.domains,
            heads: self.heads,
            roles: self.roles,
            data_keys: self.data_keys,
            volume_domains: self.volume_domains,
        }
    }

    /// Errors when the archive has a feature that is needed to change it, and that this program does not
    /// know.
    pub(crate) fn may_be_changed(&self) -> Result<()> {
        refuse_unknown(self.newer.to_write, "to change it")
    }

    /// The bytes, as the archive with this identity writes them.
    ///
    /// # Errors
    /// `Io`: what seals the label refuses to.
    pub fn encode(&self, identity: &Identity) -> Result<Vec<u8>> {
        let mut bytes = self.fields();
        if identity.sealing().is_some() {
            let tag = self.tag(identity, &bytes)?;
            bytes[TAG_AT..TAG_AT + TAG_BYTES].copy_from_slice(&tag);
        }
        // Tells rot from all else to who has no key, too.
        let checksum = self.identity().checksum(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        Ok(bytes)
    }

    /// The tag over all fields of a sealed archive's label.
    fn tag(&self, identity: &Identity, fields: &[u8]) -> Result<[u8; TAG_BYTES]> {
        let sealing = identity.sealing();
        sealing.map_or(Ok([0; TAG_BYTES]), |sealing| {
            sealing.seal(What::Label, (0, self.generation), &fields[..TAG_AT], &mut [])
        })
    }

    /// True when the archive with this identity wrote these bytes.
    fn is_proven(&self, identity: &Identity, bytes: &[u8]) -> bool {
        let (Some(sealing), Some(tag)) =
            (identity.sealing(), bytes.get(TAG_AT..TAG_AT + TAG_BYTES))
        else {
            return self.sealed.is_none() && identity.sealing().is_none();
        };
        let tag = tag.try_into().unwrap_or([0; TAG_BYTES]);
        sealing.open(What::Label, (0, self.generation), &bytes[..TAG_AT], &mut [], &tag)
    }

    /// All but the checksum, and the tag as zeroes.
    fn fields(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let named = self.fingerprint != Algorithm::Blake3;
        let gathers = self.late.map_or(0, |rad| rad.gathers);
        let to_write = [
            (gathers > 0, FEATURE_GATHERED),
            (self.counts_in_pages, FEATURE_COUNTS_IN_PAGES),
            (self.heads, FEATURE_HEADS),
        ];
        let write: u64 = to_write.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum();
        let (write, ignored) = (write | self.newer.to_write, self.newer.ignored);
        let has_features = self.trees
            || self.leaves
            || self.on_demand
            || self.clones
            || named
            || write > 0
            || ignored > 0;
        let version = match (self.sealed, has_features, self.late.is_some()) {
            (Some(_), ..) => VERSION_SEALED,
            (_, true, _) => VERSION_FEATURES,
            (_, false, true) => VERSION_LATE,
            (_, false, false) => VERSION,
        };
        w.raw(MAGIC).u32(version).u32(0).raw(&self.id).raw(&self.secret).raw(&self.node);
        let (kind, mean) = self.chunking.code();
        let [nodes, data, parity] = self.spread;
        w.u8(kind)
            .u8(self.compression.code())
            .u8(0)
            .u8(nodes)
            .u8(data)
            .u8(parity)
            .u8(if named { self.fingerprint.code() } else { 0 })
            .u8(0)
            .u32(mean)
            .u32(0);
        w.u64(self.segment_bytes).u64(self.generation).u64(self.snapshot);
        if let Some(Rad { delay, batch, classes, gathers }) = self.late {
            w.u32(delay).u32(batch).raw(&classes);
            if gathers > 0 {
                w.u32(gathers);
            }
        }
        if version >= VERSION_FEATURES {
            w.0.resize(FEATURES_AT, 0);
            let bits = [
                (self.late.is_some(), FEATURE_LATE),
                (self.trees, FEATURE_TREES),
                (self.leaves, FEATURE_LEAVES),
                (self.on_demand, FEATURE_ON_DEMAND),
                (named, FEATURE_FINGERPRINT),
                (self.clones, FEATURE_CLONES),
                (self.domains, FEATURE_DOMAINS),
                (self.roles, FEATURE_ROLES),
                (self.data_keys, FEATURE_DATA_KEYS),
                (self.volume_domains, FEATURE_VOLUME_DOMAINS),
                (self.pads, FEATURE_PADDED),
            ];
            let read: u64 = bits.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum();
            w.u64(read).u64(write).u64(ignored);
        }
        if let Some(keys) = self.sealed {
            w.u64(keys);
        }
        w.0.resize(LABEL_BYTES - 8, 0);
        w.0
    }

    /// Decodes the bytes of one place.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Found {
        if bytes.len() != LABEL_BYTES || !bytes.starts_with(MAGIC) {
            return Found::Foreign;
        }
        Label::decode_whole(bytes).map_or_else(Found::Bad, Found::Good)
    }

    fn decode_whole(bytes: &[u8]) -> Result<Label> {
        let mut r = Reader(&bytes[8..], None);
        let version = r.u32()?;
        if !(VERSION..=VERSION_SEALED).contains(&version) {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "the archive has format {version}; this program knows {VERSION} to {VERSION_SEALED}"
                ),
            ));
        }
        r.u32()?;
        let (id, secret, node) = (r.array()?, r.array()?, r.array()?);
        if Identity::new(id, &secret).checksum(&bytes[..LABEL_BYTES - 8]).to_le_bytes()
            != bytes[LABEL_BYTES - 8..]
        {
            return Err(corrupt("the label fails its checksum"));
        }
        let (kind, compression) = (r.u8()?, r.u8()?);
        let code = [r.u8()?, r.u8()?, r.u8()?, r.u8()?];
        let fingerprint = r.u8()?;
        r.u8()?;
        let mean = r.u32()?;
        r.u32()?;
        let [0, nodes, data, parity] = code else {
            return Err(corrupt("the label's code can't be true"));
        };
        let mut label = Label {
            id,
            secret,
            node,
            chunking: Chunking::from_code(kind, mean)
                .ok_or_else(|| corrupt("an unknown chunker"))?,
            compression: Compression::from_code(compression)
                .ok_or_else(|| corrupt("an unknown compression"))?,
            segment_bytes: r.u64()?,
            generation: r.counter()?,
            snapshot: r.counter()?,
            spread: [nodes, data, parity],
            late: None,
            trees: false,
            leaves: false,
            on_demand: false,
            clones: false,
            counts_in_pages: false,
            domains: false,
            heads: false,
            roles: false,
            data_keys: false,
            volume_domains: false,
            pads: false,
            fingerprint: Algorithm::Blake3,
            sealed: None,
            newer: Newer::default(),
        };
        let (features, to_write, newer) =
            if version >= VERSION_FEATURES { features(bytes)? } else { Default::default() };
        label.newer = newer;
        if version == VERSION_SEALED {
            label.sealed = Some(Reader(&bytes[KEYS_AT..], None).counter()?);
        }
        label.trees = features & FEATURE_TREES != 0;
        label.leaves = features & FEATURE_LEAVES != 0;
        label.on_demand = features & FEATURE_ON_DEMAND != 0;
        if label.on_demand && !label.leaves {
            return Err(corrupt("the label's features can't be true"));
        }
        label.clones = features & FEATURE_CLONES != 0;
        label.counts_in_pages = to_write & FEATURE_COUNTS_IN_PAGES != 0;
        label.domains = features & FEATURE_DOMAINS != 0;
        label.heads = to_write & FEATURE_HEADS != 0;
        label.roles = features & FEATURE_ROLES != 0;
        label.data_keys = features & FEATURE_DATA_KEYS != 0;
        label.volume_domains = features & FEATURE_VOLUME_DOMAINS != 0;
        label.pads = features & FEATURE_PADDED != 0;
        if label.volume_domains && !(label.domains && label.clones) {
            return Err(corrupt("the label's features can't be true"));
        }
        if label.roles && (!label.heads || !label.trees || label.leaves || label.domains) {
            return Err(corrupt("the label's features can't be true"));
        }
        let is_sealed_only = label.domains || label.heads || label.data_keys || label.pads;
        if is_sealed_only && label.sealed.is_none() || label.data_keys && label.roles {
            return Err(corrupt("the label's features can't be true"));
        }
        if features & FEATURE_FINGERPRINT != 0 {
            label.fingerprint = Algorithm::from_code(fingerprint)
                .filter(|algorithm| !algorithm.needs_bytes())
                .ok_or_else(|| corrupt("an unknown fingerprint"))?;
        }
        if version == VERSION_LATE || features & FEATURE_LATE != 0 {
            let rad = Rad {
                delay: r.u32()?,
                batch: r.u32()?,
                classes: r.array()?,
                gathers: if to_write & FEATURE_GATHERED != 0 { r.u32()? } else { 0 },
            };
            if label.roles {
                return Err(corrupt("the label's features can't be true"));
            }
            rad.check(label.spread).map_err(|_| corrupt("the label's codes can't be true"))?;
            label.late = Some(rad);
        }
        Ok(label)
    }
}

/// The bits that a program must know to read, and to change it, and those that this program does not
/// know. One that is needed to read, and that it does not know, is an error which names it.
fn features(bytes: &[u8]) -> Result<(u64, u64, Newer)> {
    let mut r = Reader(&bytes[FEATURES_AT..], None);
    let (read, write, ignored) = (r.u64()?, r.u64()?, r.u64()?);
    let known = FEATURE_LATE
        | FEATURE_TREES
        | FEATURE_LEAVES
        | FEATURE_FINGERPRINT
        | FEATURE_CLONES
        | FEATURE_ON_DEMAND
        | FEATURE_DOMAINS
        | FEATURE_ROLES
        | FEATURE_DATA_KEYS
        | FEATURE_VOLUME_DOMAINS
        | FEATURE_PADDED;
    if read & FEATURE_DATA_KEYS_BEFORE != 0 {
        return Err(Error::new(
            Kind::Unsupported,
            "the data keys of the archive may have been changed by a version under development, in a form that was \
             given up (feature 8): read it by that version, and store what is in it in a new archive",
        ));
    }
    refuse_unknown(read & !known, "to read it")?;
    let to_write = write & !(FEATURE_GATHERED | FEATURE_COUNTS_IN_PAGES | FEATURE_HEADS);
    Ok((read, write, Newer { to_write, ignored }))
}

/// Errors when there are bits that this program does not know; names the first.
fn refuse_unknown(bits: u64, what: &str) -> Result<()> {
    match bits {
        0 => Ok(()),
        _ => Err(Error::new(
            Kind::Unsupported,
            format!(
                "the archive has feature {} of those that are needed {what}, which this program \
                 does not know: use a newer one",
                bits.trailing_zeros()
            ),
        )),
    }
}

/// The label that counts of the two places.
///
/// # Errors
/// `NotFound` when there is none, `Corrupt` when no place is whole, `Unsupported` when it is too
/// new, or of a form that was given up.
pub(crate) fn choose(first: Found, second: Found) -> Result<Label> {
    match (first, second) {
        (Found::Good(a), Found::Good(b)) => Ok(if a.generation > b.generation { a } else { b }),
        (Found::Good(label), _) | (_, Found::Good(label)) => Ok(label),
        // A place of a form that this program does not know is whole, and says more than a damaged one.
        (Found::Bad(first), Found::Bad(second)) => {
            Err(if is_damage(&first) { second } else { first })
        }
        (Found::Bad(error), _) | (_, Found::Bad(error)) => Err(error),
        (Found::Foreign, Found::Foreign) => Err(Error::new(Kind::NotFound, "no archive")),
    }
}

/// The label that counts.
///
/// # Errors
/// `NotFound` when there is no archive, `Corrupt`, `Unsupported`.
pub fn find_label(files: &dyn Files) -> Result<Label> {
    look_for_label(files, true).map(|(label, _)| label)
}

/// The label that counts, and whether one of its places is damaged; then the other one was newer,
/// or it was not. Only the simulator gives `one_is_enough`
/// as false: then both places must be readable.
pub(crate) fn look_for_label(files: &dyn Files, one_is_enough: bool) -> Result<(Label, bool)> {
    let file = files.open(LABEL).map_err(|e| {
        if e.kind() == Kind::NotFound { Error::new(Kind::NotFound, "no archive") } else { e }
    })?;
    let [first, second] = both_places(&*file, one_is_enough)?;
    let is_damaged = ![&first, &second].into_iter().all(|found| matches!(found, Found::Good(_)));
    match choose(first, second) {
        Err(error) if is_damage(&error) => {
            Err(error.context(format!("both places of the label are damaged; {PUT_BACK}")))
        }
        chosen => chosen.map(|label| (label, is_damaged)),
    }
}

/// [`look_for_label`] of an archive whose identity is known: a sealed one's label is proven.
///
/// # Errors
/// The errors of [`look_for_label`]; `Corrupt` when somebody without the key wrote the label.
pub(crate) fn look_for_proven(
    files: &dyn Files,
    identity: &Identity,
    one_is_enough: bool,
) -> Result<(Label, bool)> {
    let (label, is_damaged) = look_for_label(files, one_is_enough)?;
    if label.sealed.is_some() || identity.sealing().is_some() {
        let mut bytes = vec![0; LABEL_BYTES];
        files.open(LABEL)?.read_at(label.place(), &mut bytes)?;
        // The label may have changed since the first reading: whoever has the files may answer as they like.
        let is_it = matches!(Label::decode(&bytes), Found::Good(read) if read == label);
        if !is_it || !label.is_proven(identity, &bytes) {
            return Err(corrupt(format!(
                "the label was changed by somebody without the archive's key; {PUT_BACK}"
            )));
        }
    }
    // Whoever has a put key can write a label. Manage signs no number that it has from there: its key area
    // and its frames say it. A put key carries the number on where it writes the label again.
    if let (Some(sealing), Some(keys)) = (identity.sealing(), label.sealed)
        && sealing.role() != Some(Role::Manage)
    {
        sealing.saw_keys(keys);
    }
    Ok((label, is_damaged))
}

/// The labels found in the two places.
fn both_places(file: &dyn File, one_is_enough: bool) -> Result<[Found; 2]> {
    let is_empty = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let look = |place: u64| -> Result<Found> {
        let mut bytes = vec![0; LABEL_BYTES];
        match file.read_at(place, &mut bytes) {
            Err(error) if error.kind() == Kind::Io && one_is_enough => Ok(Found::Bad(error)),
            read => match Label::decode(&bytes[..read?]) {
                Found::Foreign if !is_empty(&bytes) => {
                    Ok(Found::Bad(corrupt("the label is none of an archive")))
                }
                found => Ok(found),
            },
        }
    };
    Ok([look(0)?, look(LABEL_BYTES as u64)?])
}

/// True when a place of the label tells of other kinds of tables than these: an upgrade did not come
/// to both places.
///
/// # Errors
/// Errors of the system, but for a place that can't be read.
pub(crate) fn is_half_upgraded(files: &dyn Files, kinds: Kinds) -> Result<bool> {
    let found = both_places(&*files.open(LABEL)?, true)?;
    let differs = |found: &Found| matches!(found, Found::Good(label) if label.kinds() != kinds);
    Ok(found.iter().any(differs))
}

/// The advice about a damaged log, which has no second copy on one node.
pub(crate) const PUT_BACK: &str = "put the file back from a copy of the archive";

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(label: &Label) -> Vec<u8> {
        label.encode(&label.identity()).unwrap()
    }

    fn label(leaves: bool) -> Label {
        Label {
            id: [1; 16],
            secret: [2; 32],
            node: [3; 16],
            chunking: Chunking::FastCdc(8 << 10),
            compression: Compression::None,
            segment_bytes: 1 << 30,
            generation: 5,
            snapshot: 3,
            spread: [1, 1, 0],
            late: None,
            trees: false,
            leaves,
            on_demand: false,
            clones: false,
            counts_in_pages: false,
            domains: false,
            heads: false,
            roles: false,
            data_keys: false,
            volume_domains: false,
            pads: false,
            fingerprint: Algorithm::Blake3,
            sealed: None,
            newer: Newer::default(),
        }
    }

    #[test]
    fn rule_01_bits_of_newer_programs_stay_and_let_read() {
        let newer = Newer { to_write: 1 << 40, ignored: 6 };
        let newer = Label { newer, ..label(true) };
        let bytes = encoded(&newer);
        assert_eq!((bytes[8], bytes[FEATURES_AT + 13], bytes[FEATURES_AT + 16]), (3, 1, 6));
        assert!(matches!(Label::decode(&bytes), Found::Good(read) if read == newer));
        let refused = newer.may_be_changed().unwrap_err();
        assert!(refused.kind() == Kind::Unsupported && refused.to_string().contains("feature 40"));
        assert!(label(true).may_be_changed().is_ok());
    }

    #[test]
    fn rule_29_a_label_with_counts_in_pages_has_a_bit_of_those_that_change_it() {
        let with = Label { counts_in_pages: true, ..label(false) };
        let bytes = encoded(&with);
        assert_eq!((bytes[8], bytes[FEATURES_AT], bytes[FEATURES_AT + 8]), (3, 0, 2));
        assert!(matches!(Label::decode(&bytes), Found::Good(read) if read == with));
    }

    #[test]
    fn rule_01_a_label_with_leaves_has_a_bit_that_older_programs_name_and_refuse() {
        assert_eq!(encoded(&label(false))[8], 1);
        let mut bytes = encoded(&label(true));
        assert_eq!((bytes[8], bytes[FEATURES_AT]), (3, 4));
        assert!(matches!(Label::decode(&bytes), Found::Good(read) if read == label(true)));
        // As an older program sees this one: a bit that it does not know.
        bytes[FEATURES_AT + 1] = 16;
        let error = refused(bytes, &label(true));
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains("feature 12"));
    }

    /// The error of who decodes these bytes, once their checksum is as that label has it.
    fn refused(mut bytes: Vec<u8>, like: &Label) -> Error {
        let checksum = like.identity().checksum(&bytes[..LABEL_BYTES - 8]);
        bytes[LABEL_BYTES - 8..].copy_from_slice(&checksum.to_le_bytes());
        let Found::Bad(error) = Label::decode(&bytes) else { panic!("it was taken") };
        error
    }

    #[test]
    fn rule_24_data_keys_in_the_form_that_was_given_up_are_told_from_newer_programs() {
        let with = Label { data_keys: true, sealed: Some(1), secret: [0; 32], ..label(true) };
        let mut bytes = encoded(&with);
        assert_eq!((bytes[8], bytes[FEATURES_AT], bytes[FEATURES_AT + 1]), (4, 4, 2));
        assert!(matches!(Label::decode(&bytes), Found::Good(read) if read == with));
        bytes[FEATURES_AT + 1] = 1;
        let error = refused(bytes, &with);
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("given up") && !error.to_string().contains("newer"));
    }

    #[test]
    fn rule_34_a_label_of_an_archive_that_pads_has_a_bit_that_older_programs_name_and_refuse() {
        let with = Label { pads: true, sealed: Some(1), secret: [0; 32], ..label(true) };
        let bytes = encoded(&with);
        assert_eq!((bytes[8], bytes[FEATURES_AT], bytes[FEATURES_AT + 1]), (4, 4, 8));
        assert!(matches!(Label::decode(&bytes), Found::Good(read) if read == with));
        let plain = Label { sealed: None, ..with };
        assert!(matches!(Label::decode(&encoded(&plain)), Found::Bad(_)));
    }

    #[test]
    fn rule_45_a_label_of_keys_with_roles_has_a_bit_and_what_roles_need() {
        let with = Label {
            trees: true,
            heads: true,
            roles: true,
            sealed: Some(1),
            secret: [0; 32],
            ..label(false)
        };
        let bytes = encoded(&with);
        assert_eq!((bytes[8], bytes[FEATURES_AT], bytes[FEATURES_AT + 8]), (4, 2 | 128, 4));
        assert!(matches!(Label::decode(&bytes), Found::Good(read) if read == with));
        for wrong in [
            Label { heads: false, ..with.clone() },
            Label { trees: false, ..with.clone() },
            Label { leaves: true, ..with.clone() },
            Label { domains: true, ..with.clone() },
            Label { sealed: None, ..with.clone() },
        ] {
            assert!(matches!(Label::decode(&encoded(&wrong)), Found::Bad(_)), "{wrong:?}");
        }
    }

    #[test]
    fn rule_47_a_label_with_leaves_on_demand_has_a_bit_of_its_own() {
        let on_demand = Label { on_demand: true, ..label(true) };
        let bytes = encoded(&on_demand);
        assert_eq!((bytes[8], bytes[FEATURES_AT]), (3, 4 | 32));
        assert!(matches!(Label::decode(&bytes), Found::Good(read) if read == on_demand));
        let without_leaves = encoded(&Label { leaves: false, ..on_demand });
        assert!(matches!(Label::decode(&without_leaves), Found::Bad(_)));
    }

    #[test]
    fn rule_65_gathered_chunks_have_a_bit_that_older_programs_refuse() {
        let rad = Rad { delay: 0, batch: 1, classes: [4, 3, 2], gathers: 0 };
        let late = Label { spread: [6, 4, 2], late: Some(rad), ..label(true) };
        let bytes = encoded(&late);
        assert_eq!(bytes[FEATURES_AT + 8], 0, "as before");
        let gathers = Rad { gathers: 256 << 10, ..rad };
        let gathered = Label { late: Some(gathers), ..late.clone() };
        let bytes = encoded(&gathered);
        // Programs from before know no bit of those that writers need.
        assert_eq!((bytes[8], bytes[FEATURES_AT + 8]), (3, 1));
        assert!(matches!(Label::decode(&bytes), Found::Good(read) if read == gathered));
        // Without other features, too.
        let gathered = Label { leaves: false, ..gathered };
        assert_eq!(encoded(&gathered)[8], 3);
        assert!(
            matches!(Label::decode(&encoded(&gathered)), Found::Good(read) if read == gathered)
        );
        // A delay and a batch of versions make no sense with it.
        for rad in [Rad { delay: 1, ..gathers }, Rad { batch: 2, ..gathers }] {
            let wrong = Label { late: Some(rad), ..late.clone() };
            assert!(matches!(Label::decode(&encoded(&wrong)), Found::Bad(_)), "{rad:?}");
        }
    }
}
