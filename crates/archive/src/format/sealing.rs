//! The ciphers of a sealed archive. Whoever holds its directory learns neither content nor names from it, and changes
//! nothing unnoticed but what SECURITY.md names.
//!
//! Where a plain archive has a checksum of 8 bytes, a sealed one has the first half of a tag, and the
//! second half stands behind what is sealed. Container metadata have their whole tag in the header, and
//! a group has it behind itself. Sealed bytes are bound to what they are and to where they stand. The
//! nonce is this place: the cipher, AES-256-GCM-SIV, allows other bytes under the same nonce, which
//! crashes, copies and clones of an archive bring about. A group is sealed by AES-256-GCM with a key of
//! its container, which is made of chance and of all that the container holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind, Result};
use onefold_seal::{
    AgreementKey, GcmKey, Keys, PUBLIC_BYTES, Place, Random, RoleKey, RoleSecret, SIGNATURE_BYTES,
    Secret, Shared, SigningKey, SivKey, TAG_BYTES, Use, digest, is_signed,
};
use parking_lot::RwLock;
use zeroize::Zeroizing;

use super::{
    data_keys::{KEPT_BYTES, Kept, Rotation},
    domain::FIRST_DOMAIN,
};

/// Bytes of a salt.
pub(crate) const SALT_BYTES: usize = 32;

/// Where the header of a sealed container has the number of its domain.
pub(crate) const DOMAIN_AT: usize = 104;

/// Bytes of the domain's number there, and of the generation of its data key behind it.
pub(crate) const DOMAIN_SAID_BYTES: usize = 8;

/// The kind of what is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A place of the label.
    Label,
    /// A frame of the log.
    Frame,
    /// The tables of a snapshot.
    Snapshot,
    /// A part of a snapshot: figures of writing, or of the archive's care.
    SnapshotPart,
    /// A leaf of the tables.
    Leaf,
    /// A page of the maps of volumes.
    MapPage,
    /// A block of usage counts in a list.
    Counts,
    /// The metadata of a container.
    Metadata,
    /// A page of the chunk index.
    IndexPage,
    /// A page of usage counts.
    CountsPage,
    /// The directory of usage counts in pages.
    CountsDirectory,
    /// The header, which says where that directory lies.
    CountsHeader,
}

/// The kind of the kept keys of an older data key, beside those of [`What`].
const OLDER_KEY: u8 = 13;

impl What {
    fn code(self) -> u8 {
        match self {
            What::Label => 1,
            What::Frame => 2,
            What::Snapshot => 3,
            What::SnapshotPart => 4,
            What::Leaf => 5,
            What::MapPage => 6,
            What::Counts => 7,
            What::Metadata => 8,
            What::IndexPage => 9,
            What::CountsPage => 10,
            What::CountsDirectory => 11,
            What::CountsHeader => 12,
        }
    }

    /// True when only manage writes and reads it, in an archive with roles.
    fn is_of_manage(self) -> bool {
        matches!(
            self,
            What::SnapshotPart
                | What::Counts
                | What::CountsPage
                | What::CountsDirectory
                | What::CountsHeader
        )
    }

    /// True when the key comes from a domain.
    fn is_of_domain(self) -> bool {
        matches!(self, What::Metadata | What::IndexPage)
    }
}

/// What an archive that breaks its rules leaves out; only simulators set any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flaws {
    /// Salts come from chance alone.
    pub(crate) salt_by_chance: bool,
    /// Groups are written as they are.
    pub(crate) plain_groups: bool,
    /// Fingerprints of all domains have the key of the first one.
    pub(crate) one_fingerprint_key: bool,
    /// Tags don't prove the number of the domain.
    pub(crate) number_unproven: bool,
    /// Manage seals what is its own by the key that all roles have.
    pub(crate) own_by_shared: bool,
    /// Fingerprints keep the key that the domain had first.
    pub(crate) older_fingerprints: bool,
}

/// The role of the key by which a process opened an archive whose keys have roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opened by a slot: it does everything.
    Manage,
    /// The put key of this number: it adds snapshots, and opens no container.
    Put(u32),
    /// A read key: it opens containers, and changes nothing.
    Read,
}

/// The role of a process, and the keys for it, in an archive whose keys have roles.
pub(crate) struct Roles {
    role: Role,
    /// The public key that verifies what manage signed.
    managing: [u8; PUBLIC_BYTES],
    /// The public key for whose owner all writers seal containers.
    reading: [u8; PUBLIC_BYTES],
    signing: Option<SigningKey>,
    opens: Option<AgreementKey>,
}

impl Roles {
    /// The number by which this process signs.
    pub(crate) fn number(&self) -> u32 {
        match self.role {
            Role::Put(number) => number,
            Role::Manage | Role::Read => 0,
        }
    }

    /// Signs a message.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<[u8; SIGNATURE_BYTES]> {
        let signing = self.signing.as_ref().ok_or_else(|| {
            let why = "this is a read key: it opens what is stored, and changes nothing";
            Error::new(Kind::Denied, why)
        })?;
        signing.sign(message)
    }

    /// True when manage signed the message.
    pub(crate) fn is_of_manage(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        is_signed(&self.managing, message, signature)
    }
}

/// The working keys of an archive.
pub(crate) struct Sealing {
    archive: SivKey,
    /// The key of metadata that only manage writes and reads; `None` for other roles, and where there are
    /// none.
    own: Option<SivKey>,
    roles: Option<Arc<Roles>>,
    domains: RwLock<Domains>,
    random: Arc<dyn Random>,
    flaws: Flaws,
    /// The highest number of a key area that this process knows of.
    keys: AtomicU64,
    /// Seeds the checksums.
    checksums: u64,
}

/// The domains that this process knows of.
#[derive(Default)]
struct Domains {
    /// The number of the key area that they come from.
    from: u64,
    there: BTreeMap<u32, Versions>,
    /// Those that were erased.
    gone: BTreeSet<u32>,
    /// Data keys that took the place of older ones, as the log has them, by domain and generation.
    changes: BTreeMap<(u32, u32), KeyChange>,
    /// How often the log had something new of them.
    news: u64,
    /// The same count when this process last looked at the key area.
    looked: u64,
}

/// The working keys of a domain: by its data key, and by the one before as long as that is there.
struct Versions {
    now: Arc<DomainSealing>,
    older: Option<Arc<DomainSealing>>,
}

impl Versions {
    /// The working keys of a generation, where this process has its data key.
    fn of(&self, generation: u32) -> Option<&Arc<DomainSealing>> {
        std::iter::once(&self.now).chain(&self.older).find(|one| one.generation == generation)
    }

    /// The error of whoever wants a data key that is not there.
    fn not_of_one_time(&self, generation: u32) -> Error {
        let DomainSealing { number, generation: found, .. } = *self.now;
        let what = format!(
            "the data key of generation {generation} of domain {number} is not in `keys`, which has generation {found}"
        );
        let why = match generation < found {
            true => {
                "another process has changed it and erased the older one, and beginning again helps; if this stays, \
                 the archive is older than its file `keys`: put back the `keys` that it had at that time"
            }
            false => "`keys` is an older one: put back the newest copy of it",
        };
        Error::new(Kind::Denied, format!("{what}: {why}"))
    }
}

/// The log's words about a data key that took the place of an older one.
pub(crate) struct KeyChanged<'a> {
    pub(crate) rotation: &'a Rotation,
    /// The kept keys of the older one, sealed, once the log has them.
    pub(crate) kept: Option<&'a Kept>,
    /// The older one was erased.
    pub(crate) erased: bool,
}

/// A data key that took the place of an older one.
struct KeyChange {
    /// The first container under it.
    from: u64,
    /// The kept keys of the older one, sealed, once the log has them.
    kept: Option<Box<Kept>>,
    /// The same, opened, where this process has a data key that opens them.
    opened: Option<KeptKeys>,
    /// The older one was erased.
    erased: bool,
}

/// The kept keys of an older data key: they are needed for what was stored under it, and open no container.
struct KeptKeys {
    /// Its key of fingerprints.
    fingerprints: Secret,
    /// The key that opens the kept keys of the data key before it.
    before: Secret,
    /// The seed of the ends of the domain's tree nodes.
    borders: Option<u64>,
}

impl KeptKeys {
    /// Of a data key that is there.
    fn of(domain: &DomainSealing) -> KeptKeys {
        KeptKeys {
            fingerprints: domain.fingerprints.again(),
            before: domain.kept.again(),
            // Nodes end by the first data key.
            borders: domain.borders.filter(|_| domain.generation == 0),
        }
    }

    /// The same, sealed for a generation of a domain by the key for it.
    fn seal(&self, (number, generation): (u32, u32), by: &Secret) -> Result<Kept> {
        let mut plain = Zeroizing::new([0; KEPT_BYTES]);
        plain[..32].copy_from_slice(self.fingerprints.expose());
        plain[32..64].copy_from_slice(self.before.expose());
        plain[64..].copy_from_slice(&self.borders.unwrap_or(0).to_le_bytes());
        let tag = SivKey::new(by)?.seal(kept_at(number, generation), &[], &mut plain[..])?;
        let mut kept = [0; KEPT_BYTES + TAG_BYTES];
        kept[..KEPT_BYTES].copy_from_slice(&plain[..]);
        kept[KEPT_BYTES..].copy_from_slice(&tag);
        Ok(kept)
    }

    /// Opens sealed kept keys; `None` where this key did not seal them.
    fn open(
        kept: &Kept,
        (number, generation): (u32, u32),
        by: &Secret,
    ) -> Result<Option<KeptKeys>> {
        let mut plain = Zeroizing::new([0; KEPT_BYTES]);
        let (sealed, tag) = kept.split_at(KEPT_BYTES);
        plain.copy_from_slice(sealed);
        let mut whole = [0; TAG_BYTES];
        whole.copy_from_slice(tag);
        let place = kept_at(number, generation);
        if !SivKey::new(by)?.open(place, &[], &mut plain[..], &whole) {
            return Ok(None);
        }
        let (mut fingerprints, mut before, mut borders) = ([0; 32], [0; 32], [0; 8]);
        fingerprints.copy_from_slice(&plain[..32]);
        before.copy_from_slice(&plain[32..64]);
        borders.copy_from_slice(&plain[64..]);
        Ok(Some(KeptKeys {
            fingerprints: Secret::take(&mut fingerprints),
            before: Secret::take(&mut before),
            borders: Some(u64::from_le_bytes(borders)),
        }))
    }
}

/// The place of the kept keys of the data key before a generation of a domain.
fn kept_at(number: u32, generation: u32) -> Place {
    Place { kind: OLDER_KEY, file: number.into(), number: generation.into() }
}

/// The error of whoever has another data key of the same generation.
fn of_another_copy(number: u32) -> Error {
    let why = format!(
        "the kept keys of an older data key of domain {number} do not open by `keys`, which is that of another copy \
         of this archive, perhaps: put back its own one"
    );
    Error::new(Kind::Denied, why)
}

impl Domains {
    fn versions(&self, number: u32) -> Result<&Versions> {
        if self.gone.contains(&number) {
            return Err(erased(number));
        }
        self.there.get(&number).ok_or_else(|| {
            let why = format!("the key area has no key of domain {number}");
            Error::new(Kind::Denied, why)
        })
    }

    /// Opens the kept keys of a domain's older data keys, from the newest one on: each opens the ones before.
    fn open_kept(&mut self, number: u32) -> Result<()> {
        let Some(versions) = self.there.get(&number) else { return Ok(()) };
        let mut next: Option<Secret> = None;
        let changes = self.changes.range_mut((number, 0)..=(number, u32::MAX)).rev();
        for ((_, generation), change) in changes {
            let own = versions.of(*generation).map(|there| there.kept.again());
            change.opened = match (own.or(next.take()), &change.kept) {
                // Where it does not open, the domain is of no use, and others are.
                (Some(by), Some(kept)) => KeptKeys::open(kept, (number, *generation), &by)?,
                // Nothing is said of the older one yet, or this process has no newer one: it is there.
                _ => versions.of(generation.saturating_sub(1)).map(|before| KeptKeys::of(before)),
            };
            next = change.opened.as_ref().map(|opened| opened.before.again());
        }
        Ok(())
    }

    /// The seed of the ends of tree nodes of a domain that got another data key.
    fn borders(&self, number: u32) -> Option<u64> {
        let mut changes = self.changes.range((number, 0)..=(number, u32::MAX));
        changes.find_map(|(_, change)| change.opened.as_ref()?.borders)
    }

    /// Forgets older data keys of which the log says that they were erased.
    fn forget_older(&mut self) {
        let Domains { there, changes, .. } = self;
        for (number, versions) in there {
            let change = changes.get(&(*number, versions.now.generation));
            if change.is_some_and(|change| change.erased) {
                versions.older = None;
            }
        }
    }

    fn new(keys: &Keys, flaws: Flaws) -> Result<Domains> {
        let mut there = BTreeMap::new();
        for domain in keys.domains() {
            let (number, generation) = (domain.number(), domain.generation());
            let Some(key) = keys.domain(number) else { continue };
            let others = flaws.one_fingerprint_key && number != FIRST_DOMAIN;
            let fingerprints = keys.domain(FIRST_DOMAIN).filter(|_| others);
            let made = |generation, key, fingerprints| {
                let of = (number, generation, key, fingerprints);
                DomainSealing::new(of, None, flaws).map(Arc::new)
            };
            let older = keys.older(number);
            let first = older.filter(|_| flaws.older_fingerprints);
            let now = made(generation, key, fingerprints.or(first))?;
            let before = generation.saturating_sub(1);
            let older = older.map(|key| made(before, key, fingerprints)).transpose()?;
            there.insert(number, Versions { now, older });
        }
        let gone = keys.erased_domains().filter(|number| *number != FIRST_DOMAIN).collect();
        Ok(Domains { from: keys.sequence(), there, gone, ..Domains::default() })
    }

    /// The generation that the log says is the newest one of a domain.
    fn newest(&self, number: u32) -> u32 {
        let of_domain = self.changes.range((number, 0)..=(number, u32::MAX));
        of_domain.last().map_or(0, |((_, generation), _)| *generation)
    }
}

/// The working keys of a domain.
pub(crate) struct DomainSealing {
    number: u32,
    /// How often the data key was changed before this one.
    generation: u32,
    metadata: SivKey,
    containers: Secret,
    salts: Secret,
    /// Seals the kept keys of the data key before.
    kept: Secret,
    fingerprints: Secret,
    cuts: Secret,
    /// Seeds the checksums by which tree nodes end; those of the first domain are the archive's.
    borders: Option<u64>,
    roles: Option<Arc<Roles>>,
    flaws: Flaws,
}

impl Sealing {
    /// By the open keys of the archive.
    pub(crate) fn new(keys: &Keys, random: Arc<dyn Random>, flaws: Flaws) -> Result<Sealing> {
        keys.domain(FIRST_DOMAIN).ok_or_else(|| {
            let why = "the domain of the archive was erased: nothing in it can be read any more";
            Error::new(Kind::Denied, why)
        })?;
        Ok(Sealing {
            archive: SivKey::new(&keys.store_key(Use::ARCHIVE))?,
            own: None,
            roles: None,
            domains: RwLock::new(Domains::new(keys, flaws)?),
            random,
            flaws,
            keys: AtomicU64::new(keys.sequence()),
            checksums: seed(&keys.store_key(Use::ARCHIVE_CHECKSUMS)),
        })
    }

    /// The working keys of manage, in an archive whose keys have roles, by all of its keys.
    pub(crate) fn managing(keys: &Keys, random: Arc<dyn Random>, flaws: Flaws) -> Result<Sealing> {
        let shared = keys.shared()?;
        let roles = Roles {
            role: Role::Manage,
            managing: shared.managing,
            reading: shared.reading,
            signing: Some(keys.managing()?),
            opens: Some(keys.reading()?),
        };
        let own = SivKey::new(&keys.store_key(Use::ARCHIVE))?;
        let sealing = Sealing::with_roles(&shared, roles, random, flaws)?;
        sealing.saw_keys(keys.sequence());
        Ok(Sealing { own: Some(own), ..sealing })
    }

    /// The working keys of a process that has a role key.
    pub(crate) fn of_role(key: &RoleKey, random: Arc<dyn Random>, flaws: Flaws) -> Result<Sealing> {
        let (role, signing, opens) = match &key.secret {
            RoleSecret::Put(number, seed) => {
                (Role::Put(*number), Some(SigningKey::new(seed)?), None)
            }
            RoleSecret::Read(secret) => (Role::Read, None, Some(AgreementKey::new(secret)?)),
        };
        let Shared { managing, reading, .. } = key.shared;
        let roles = Roles { role, managing, reading, signing, opens };
        Sealing::with_roles(&key.shared, roles, random, flaws)
    }

    fn with_roles(
        shared: &Shared,
        roles: Roles,
        random: Arc<dyn Random>,
        flaws: Flaws,
    ) -> Result<Sealing> {
        let roles = Some(Arc::new(roles));
        let of = (FIRST_DOMAIN, 0, &shared.domain, None);
        let now = Arc::new(DomainSealing::new(of, roles.clone(), flaws)?);
        let there = BTreeMap::from([(FIRST_DOMAIN, Versions { now, older: None })]);
        Ok(Sealing {
            archive: SivKey::new(&shared.store.derive(Use::ARCHIVE))?,
            own: None,
            roles,
            domains: RwLock::new(Domains { there, ..Domains::default() }),
            random,
            flaws,
            keys: AtomicU64::new(0),
            checksums: seed(&shared.store.derive(Use::ARCHIVE_CHECKSUMS)),
        })
    }

    /// The role of this process with its keys; `None` where keys have no roles.
    pub(crate) fn roles(&self) -> Option<&Roles> {
        self.roles.as_deref()
    }

    /// The role of this process; `None` where keys have no roles.
    pub(crate) fn role(&self) -> Option<Role> {
        Some(self.roles()?.role)
    }

    /// The working keys of a domain, by the newest data key that the log has, as far as this process knows it; by
    /// the one before that where the key area has no newer one.
    ///
    /// # Errors
    /// `Denied`: it was erased, or this process does not have its key, or not the kept keys of an older one, without
    /// which what is whole would not prove true. The key area may be of a later time than the log.
    pub(crate) fn domain(&self, number: u32) -> Result<Arc<DomainSealing>> {
        let domains = self.domains.read();
        let versions = domains.versions(number)?;
        let said = domains.newest(number);
        let used = match versions.now.generation <= said {
            true => &versions.now,
            // Another process has changed the data key since this one looked at the log, or an older archive was put
            // back.
            false => versions.of(said).ok_or_else(|| versions.not_of_one_time(said))?,
        };
        let mut changes = domains.changes.range((number, 0)..=(number, used.generation)).rev();
        match changes.find(|(_, change)| change.opened.is_none()) {
            None => Ok(used.clone()),
            Some((_, KeyChange { kept: Some(_), .. })) => Err(of_another_copy(number)),
            Some(((_, generation), _)) => {
                Err(versions.not_of_one_time(generation.saturating_sub(1)))
            }
        }
    }

    /// Looks whether the kept keys of a domain's older data key open by the newest one in these keys.
    ///
    /// # Errors
    /// `Denied`: they do not, or the log does not have them yet.
    pub(crate) fn opens_kept(&self, keys: &Keys, number: u32) -> Result<()> {
        let domains = self.domains.read();
        let generation = domains.newest(number);
        let change = domains.changes.get(&(number, generation));
        let kept = change.and_then(|change| change.kept.as_ref());
        let (Some(kept), Some(key)) = (kept, keys.domain(number)) else {
            return Err(of_another_copy(number));
        };
        let by = DomainSealing::new((number, generation, key, None), None, self.flaws)?;
        match KeptKeys::open(kept, (number, generation), &by.kept)? {
            Some(_) => Ok(()),
            None => Err(of_another_copy(number)),
        }
    }

    /// The working keys of a domain by the newest data key of the key area, whatever the log says.
    ///
    /// # Errors
    /// `Denied`: it was erased, or this process does not have its key.
    pub(crate) fn domain_by_key_area(&self, number: u32) -> Result<Arc<DomainSealing>> {
        self.versions(number, |versions| Ok(versions.now.clone()))
    }

    /// The working keys of a domain by its data key of this generation.
    ///
    /// # Errors
    /// `Denied`: as [`domain`](Self::domain), or this data key was erased.
    pub(crate) fn domain_at(&self, number: u32, generation: u32) -> Result<Arc<DomainSealing>> {
        self.versions(number, |versions| {
            versions.of(generation).cloned().ok_or_else(|| versions.not_of_one_time(generation))
        })
    }

    /// The working keys by which something new of a domain is sealed.
    ///
    /// # Errors
    /// As [`domain`](Self::domain), and [`agreed_upon`](Self::agreed_upon).
    pub(crate) fn domain_to_write(&self, number: u32) -> Result<Arc<DomainSealing>> {
        self.agreed_upon(number, self.newest_generation(number))?;
        self.domain(number)
    }

    /// Errors when a domain's newest data key in the key area has another generation than the one that the log
    /// says: nobody could read what would be written by it.
    ///
    /// # Errors
    /// `Denied`: as [`domain`](Self::domain), or one of the two was put back. `Stopped`: a change of the data key
    /// was cut off, perhaps; whoever opens the archive to write ends it.
    pub(crate) fn agreed_upon(&self, number: u32, said: u32) -> Result<()> {
        let generation = self.domain_by_key_area(number)?.generation;
        let words = |kind, why: &str| {
            let what = format!(
                "`keys` has the data key of generation {generation} of domain {number}, and the log says \
                 generation {said}"
            );
            Err(Error::new(kind, format!("{what}: {why}")))
        };
        if generation > said {
            words(
                Kind::Denied,
                "the archive is older than its file `keys`; put back the `keys` that it had at that time",
            )
        } else if generation.checked_add(1) == Some(said) {
            words(
                Kind::Stopped,
                "a change was cut off, and beginning again ends it; if this stays, `keys` is an older one: \
                 put back the newest copy of it",
            )
        } else if generation < said {
            words(Kind::Denied, "`keys` is an older one; put back the newest copy of it")
        } else {
            Ok(())
        }
    }

    /// The domains that this process has keys of.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.domains.read().there.keys().copied().collect()
    }

    fn versions<T>(&self, number: u32, of: impl FnOnce(&Versions) -> Result<T>) -> Result<T> {
        of(self.domains.read().versions(number)?)
    }

    /// Seals the kept keys of the data key before this generation of a domain by the data key of this one; `None`
    /// where this process does not have both.
    ///
    /// # Errors
    /// The errors of sealing.
    pub(crate) fn keep(&self, number: u32, generation: u32) -> Result<Option<Kept>> {
        let domains = self.domains.read();
        // Where the key area lacks the domain, or it was erased, others are stored in.
        let Some(versions) = domains.there.get(&number) else { return Ok(None) };
        let borders = domains.borders(number).filter(|_| number != FIRST_DOMAIN);
        let before = versions.of(generation.saturating_sub(1));
        let (Some(now), Some(before)) = (versions.of(generation), before) else {
            return Ok(None);
        };
        let kept = KeptKeys { borders, ..KeptKeys::of(before) };
        kept.seal((number, generation), &now.kept).map(Some)
    }

    /// Takes over what the log says of data keys, with the generations whose older key was erased: that is
    /// forgotten.
    ///
    /// # Errors
    /// `Corrupt`: kept keys are not as they were sealed.
    pub(crate) fn follow<'a>(&self, all: impl Iterator<Item = KeyChanged<'a>>) -> Result<()> {
        let mut new = Vec::new();
        {
            let domains = self.domains.read();
            for KeyChanged { rotation, kept, erased } in all {
                let key = (rotation.domain, rotation.generation);
                let is_known =
                    |known: &KeyChange| (known.erased, known.kept.as_deref()) == (erased, kept);
                if !domains.changes.get(&key).is_some_and(is_known) {
                    let kept = kept.map(|kept| Box::new(*kept));
                    let change = KeyChange { from: rotation.from.0, kept, opened: None, erased };
                    new.push((key, change));
                }
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let mut domains = self.domains.write();
        // The kept keys of a domain are opened one after the other, so once for all that is new of it.
        let mut changed = BTreeSet::new();
        for (key, change) in new {
            if !domains.gone.contains(&key.0) {
                domains.changes.insert(key, change);
                domains.news += 1;
                changed.insert(key.0);
            }
        }
        changed.into_iter().try_for_each(|number| domains.open_kept(number))?;
        domains.forget_older();
        Ok(())
    }

    /// The generation of the data key that a container of a domain is under, as far as this process knows the
    /// log.
    pub(crate) fn generation_of(&self, number: u32, container: u64) -> u32 {
        let domains = self.domains.read();
        let changes = domains.changes.range((number, 0)..=(number, u32::MAX)).rev();
        let mut at_least = changes.filter(|(_, change)| change.from <= container);
        at_least.next().map_or(0, |((_, generation), _)| *generation)
    }

    /// The generation of a domain's newest data key, as far as this process knows the log.
    pub(crate) fn newest_generation(&self, number: u32) -> u32 {
        self.domains.read().newest(number)
    }

    /// True when the key area may have a newer data key of a domain than this process: the log says so, and the key
    /// area was not looked at since.
    pub(crate) fn may_be_newer(&self, number: u32) -> bool {
        let domains = self.domains.read();
        let known = domains.there.get(&number).map(|versions| versions.now.generation);
        known.is_some_and(|known| known < domains.newest(number)) && domains.looked < domains.news
    }

    /// True when this process has the key of what was written in a domain before its key was changed.
    pub(crate) fn has_older(&self, number: u32) -> bool {
        self.domains.read().there.get(&number).is_some_and(|versions| versions.older.is_some())
    }

    /// The keys of fingerprints of all older data keys of a domain, the newest one first, each given to `each`.
    pub(crate) fn older_fingerprints(&self, number: u32, each: &mut dyn FnMut(&Secret)) {
        let domains = self.domains.read();
        let changes = domains.changes.range((number, 0)..=(number, u32::MAX)).rev();
        changes
            .filter_map(|(_, change)| change.opened.as_ref())
            .for_each(|it| each(&it.fingerprints));
    }

    /// The seed of the checksums by which tree nodes of a domain end that got another data key: it stays.
    pub(crate) fn borders(&self, number: u32) -> Option<u64> {
        self.domains.read().borders(number).filter(|_| number != FIRST_DOMAIN)
    }

    /// True when a domain was erased.
    pub(crate) fn is_erased(&self, number: u32) -> bool {
        number != FIRST_DOMAIN && self.domains.read().gone.contains(&number)
    }

    /// The domains that were erased.
    pub(crate) fn erased_domains(&self) -> Vec<u32> {
        self.domains.read().gone.iter().copied().collect()
    }

    /// How often the log had something new of data keys.
    pub(crate) fn news(&self) -> u64 {
        self.domains.read().news
    }

    /// Takes over the domains of a newer key area. Those that are erased stay so. A data key that the key area lacks
    /// stays as long as it is the newest one that the log has, as far as this process knows it. `news` is what
    /// [`news`](Self::news) gave before the key area was read.
    pub(crate) fn renew_domains(&self, keys: &Keys, news: u64) -> Result<()> {
        let mut new = Domains::new(keys, self.flaws)?;
        let mut domains = self.domains.write();
        domains.looked = domains.looked.max(news);
        if new.from > domains.from {
            new.gone.extend(&domains.gone);
            let Domains { there, gone, .. } = &mut new;
            there.retain(|number, _| !gone.contains(number));
            for (number, versions) in there {
                let said = domains.newest(*number);
                let had = domains.there.get(number).and_then(|had| had.of(said));
                if versions.now.generation > said && versions.of(said).is_none() {
                    versions.older = had.cloned();
                }
            }
            new.changes = std::mem::take(&mut domains.changes);
            new.changes.retain(|(number, _), _| !new.gone.contains(number));
            (new.news, new.looked) = (domains.news, domains.looked);
            *domains = new;
            // The log may already have kept keys that this process could not open before.
            let numbers: Vec<u32> = domains.there.keys().copied().collect();
            for number in numbers {
                domains.open_kept(number)?;
            }
            domains.forget_older();
        }
        Ok(())
    }

    /// The log says that a domain was erased: its key is forgotten.
    pub(crate) fn erase(&self, number: u32) {
        if number != FIRST_DOMAIN && !self.is_erased(number) {
            let mut domains = self.domains.write();
            domains.there.remove(&number);
            domains.changes.retain(|(of, _), _| *of != number);
            domains.gone.insert(number);
        }
    }

    /// The highest number of a key area that this process knows of.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Relaxed)
    }

    /// A frame or a label bears this number of a key area.
    pub(crate) fn saw_keys(&self, number: u64) {
        self.keys.fetch_max(number, Relaxed);
    }

    /// A new salt for a container of a domain, from chance and from all that tells it from others: where
    /// chance repeats itself, another content still has another salt. Where keys have roles, the salt opens
    /// the container, and nobody else may learn it.
    pub(crate) fn salt(&self, domain: &DomainSealing, of: &[&[u8]]) -> Result<Secret> {
        let chance = Secret::drawn(&*self.random)?;
        let of = if self.flaws.salt_by_chance { &[] } else { of };
        let chance = std::iter::once(&chance.expose()[..]);
        let parts: Vec<&[u8]> = chance.chain(of.iter().copied()).collect();
        Ok(Secret::take(&mut digest(&domain.salts, &parts)))
    }

    /// The seed of checksums.
    pub(crate) fn checksums(&self) -> u64 {
        self.checksums
    }

    /// Seals bytes for their place; gives their tag, which proves `beside`, too.
    pub(crate) fn seal(
        &self,
        what: What,
        (file, number): (u64, u64),
        beside: &[u8],
        bytes: &mut [u8],
    ) -> Result<[u8; TAG_BYTES]> {
        let place = Place { kind: what.code(), file, number };
        if what.is_of_domain() {
            return self.domain_to_write(FIRST_DOMAIN)?.metadata.seal(place, beside, bytes);
        }
        let key = self.key(what).ok_or_else(|| {
            let why = "only who manages the archive writes this: open it by one of its slots";
            Error::new(Kind::Denied, why)
        })?;
        key.seal(place, beside, bytes)
    }

    /// Opens bytes that were sealed so; false when they are others, and then of no use.
    pub(crate) fn open(
        &self,
        what: What,
        (file, number): (u64, u64),
        beside: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let place = Place { kind: what.code(), file, number };
        if what.is_of_domain() {
            return self.open_by_first(place, beside, bytes, tag);
        }
        self.key(what).is_some_and(|key| key.open(place, beside, bytes, tag))
    }

    /// Opens bytes by the newest data key of the first domain, or by the one before.
    fn open_by_first(
        &self,
        place: Place,
        beside: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let both =
            self.versions(FIRST_DOMAIN, |Versions { now, older }| Ok((now.clone(), older.clone())));
        let Ok((now, older)) = both else { return false };
        let Some(older) = older else { return now.metadata.open(place, beside, bytes, tag) };
        // Bytes that do not open are of no use afterwards.
        let copy = bytes.to_vec();
        if now.metadata.open(place, beside, bytes, tag) {
            return true;
        }
        bytes.copy_from_slice(&copy);
        older.metadata.open(place, beside, bytes, tag)
    }

    fn key(&self, what: What) -> Option<&SivKey> {
        match what {
            _ if what.is_of_manage() && self.roles.is_some() && !self.flaws.own_by_shared => {
                self.own.as_ref()
            }
            _ => Some(&self.archive),
        }
    }
}

/// The error of whoever wants something of a domain that was erased.
pub(crate) fn erased(number: u32) -> Error {
    let why = format!("domain {number} was erased: nobody can read what was in it any more");
    Error::new(Kind::Denied, why)
}

/// The error of a put key that wants to read.
pub(crate) fn shut() -> Error {
    let why = "this is a put key, which adds and can't read: a read key opens what is stored, and so does who \
               manages the archive";
    Error::new(Kind::Denied, why)
}

/// The first bytes of a key as the seed of checksums.
fn seed(key: &Secret) -> u64 {
    let mut seed = [0; 8];
    seed.copy_from_slice(&key.expose()[..8]);
    u64::from_le_bytes(seed)
}

impl DomainSealing {
    fn new(
        (number, generation, key, fingerprints): (u32, u32, &Secret, Option<&Secret>),
        roles: Option<Arc<Roles>>,
        flaws: Flaws,
    ) -> Result<DomainSealing> {
        Ok(DomainSealing {
            number,
            generation,
            metadata: SivKey::new(&key.derive(Use::ARCHIVE_DOMAIN))?,
            containers: key.derive(Use::CONTAINERS),
            salts: key.derive(Use::SALTS),
            kept: key.derive(Use::KEPT),
            fingerprints: fingerprints.unwrap_or(key).derive(Use::FINGERPRINTS),
            cuts: key.derive(Use::CUTS),
            borders: (number != FIRST_DOMAIN).then(|| seed(&key.derive(Use::BORDERS))),
            roles,
            flaws,
        })
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// How often the data key was changed before this one.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// The key of fingerprints.
    pub(crate) fn fingerprints(&self) -> &Secret {
        &self.fingerprints
    }

    /// The key of where streams are cut.
    pub(crate) fn cuts(&self) -> &Secret {
        &self.cuts
    }

    /// The seed of the checksums by which tree nodes end; `None` for those of the archive.
    pub(crate) fn borders(&self) -> Option<u64> {
        self.borders
    }

    /// The seal of a new container with this salt. Where keys have roles, the salt is the secret half of a key
    /// of this container alone. The public half stands in the header in the salt's place, and the container's
    /// key comes from what the secret half and the key of readers agree on.
    pub(crate) fn new_container(
        &self,
        archive: [u8; 16],
        id: u64,
        kind: u8,
        salt: &Secret,
    ) -> Result<ContainerSeal> {
        let Some(roles) = &self.roles else {
            return self.container(archive, id, kind, *salt.expose());
        };
        let own = AgreementKey::new(salt)?;
        let public = own.public()?;
        let agreed = own.agree(&roles.reading).ok_or_else(|| {
            Error::new(Kind::Denied, "the key of readers is none that anything can be sealed for")
        })?;
        let key = self.agreed(&agreed, &public, roles);
        self.container_by(Some(&key), archive, id, kind, public)
    }

    /// The key of a container: a hash by a key of the domain of what the container's key and the readers' key
    /// agree on, and of the public halves of both.
    fn agreed(&self, agreed: &Secret, public: &[u8; PUBLIC_BYTES], roles: &Roles) -> Secret {
        let own = self.containers.derive(Use::ROLES_CONTAINERS);
        Secret::take(&mut digest(&own, &[agreed.expose(), public, &roles.reading]))
    }

    /// The seal of the container whose header has this salt, or in its place this public half. In a process
    /// with a put key the seal has no key.
    pub(crate) fn container(
        &self,
        archive: [u8; 16],
        id: u64,
        kind: u8,
        salt: [u8; SALT_BYTES],
    ) -> Result<ContainerSeal> {
        let key = match self.roles.as_deref() {
            None => Some(self.containers.derive_of(Use::CONTAINERS, &salt)),
            Some(Roles { opens: None, .. }) => None,
            Some(roles @ Roles { opens: Some(opens), .. }) => {
                let agreed = opens.agree(&salt).ok_or_else(|| {
                    Error::new(Kind::Corrupt, format!("container {id} is sealed for nobody"))
                })?;
                Some(self.agreed(&agreed, &salt, roles))
            }
        };
        self.container_by(key.as_ref(), archive, id, kind, salt)
    }

    /// The seal of a container by its key. The place has no number of the first domain: archives from before
    /// domains have none.
    fn container_by(
        &self,
        key: Option<&Secret>,
        archive: [u8; 16],
        id: u64,
        kind: u8,
        salt: [u8; SALT_BYTES],
    ) -> Result<ContainerSeal> {
        let mut place = archive.to_vec();
        place.extend_from_slice(&id.to_le_bytes());
        place.push(kind);
        if self.number != FIRST_DOMAIN && !self.flaws.number_unproven {
            place.extend_from_slice(&self.number.to_le_bytes());
        }
        let mut proof = [0; 16];
        if let Some(key) = key {
            proof.copy_from_slice(&digest(key, &[b"proof"])[..16]);
        }
        let is_plain = self.flaws.plain_groups;
        let domain = (self.number, self.generation);
        let key = key.map(GcmKey::new).transpose()?;
        Ok(ContainerSeal { key, salt, proof, place, domain, is_plain })
    }

    /// Seals the metadata of a container; gives their tag, which proves the header before it, too, with the
    /// number of the domain.
    pub(crate) fn seal_metadata(
        &self,
        id: u64,
        header: &[u8],
        bytes: &mut [u8],
    ) -> Result<[u8; TAG_BYTES]> {
        let place = Place { kind: What::Metadata.code(), file: id, number: 0 };
        self.metadata.seal(place, &self.proven(header), bytes)
    }

    /// Opens metadata that were sealed so; false when they are others, and then of no use.
    pub(crate) fn open_metadata(
        &self,
        id: u64,
        header: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let place = Place { kind: What::Metadata.code(), file: id, number: 0 };
        self.metadata.open(place, &self.proven(header), bytes, tag)
    }

    /// What the tag of metadata proves of the header: all of it.
    fn proven(&self, header: &[u8]) -> Vec<u8> {
        let mut proven = header.to_vec();
        if self.flaws.number_unproven
            && let Some(number) = proven.get_mut(DOMAIN_AT..DOMAIN_AT + 4)
        {
            number.fill(0);
        }
        proven
    }
}

/// The key of the groups of a container, and all that tags of groups prove of it.
pub(crate) struct ContainerSeal {
    /// `None` in a process that may not open the container.
    key: Option<GcmKey>,
    salt: [u8; SALT_BYTES],
    proof: [u8; 16],
    /// Archive, container, kind, and the number of a domain that is not the first one.
    place: Vec<u8>,
    /// The number of the domain that the container belongs to, and the generation of its data key.
    domain: (u32, u32),
    is_plain: bool,
}

impl ContainerSeal {
    /// The number of the domain that the container belongs to.
    pub(crate) fn domain(&self) -> u32 {
        self.domain.0
    }

    /// The generation of the domain's data key by which it is sealed.
    pub(crate) fn generation(&self) -> u32 {
        self.domain.1
    }

    pub(crate) fn salt(&self) -> &[u8; SALT_BYTES] {
        &self.salt
    }

    /// False in a process with a put key, for a container that it did not make just now.
    pub(crate) fn may_open(&self) -> bool {
        self.key.is_some()
    }

    /// Tells whether a key is the container's.
    pub(crate) fn proof(&self) -> [u8; 16] {
        self.proof
    }

    /// The group's number, and what the tag proves beside its bytes: where it is, and its lengths.
    fn of_group(&self, group: usize, stored: usize, raw: u32) -> ([u8; 12], Vec<u8>) {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&(group as u64).to_le_bytes());
        let mut beside = self.place.clone();
        beside.extend_from_slice(&(group as u32).to_le_bytes());
        beside.extend_from_slice(&(stored as u32).to_le_bytes());
        beside.extend_from_slice(&raw.to_le_bytes());
        (nonce, beside)
    }

    /// Seals a group of so many expanded bytes, as it is stored; its tag comes behind it.
    pub(crate) fn seal(&self, group: usize, raw: u32, bytes: &mut [u8]) -> Result<[u8; TAG_BYTES]> {
        let (nonce, beside) = self.of_group(group, bytes.len(), raw);
        if self.is_plain {
            return Ok([0; TAG_BYTES]);
        }
        match &self.key {
            Some(key) => key.seal(nonce, &beside, bytes),
            None => Err(shut()),
        }
    }

    /// Opens a group with its tag; `None` when it is not what was sealed.
    pub(crate) fn open<'a>(
        &self,
        group: usize,
        raw: u32,
        stored: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        let (bytes, tag) = stored.split_last_chunk_mut::<TAG_BYTES>()?;
        let (nonce, beside) = self.of_group(group, bytes.len(), raw);
        let opens = self.is_plain
            || self.key.as_ref().is_some_and(|key| key.open(nonce, &beside, bytes, tag));
        opens.then_some(bytes)
    }
}

impl fmt::Debug for ContainerSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContainerSeal")
    }
}

impl PartialEq for ContainerSeal {
    fn eq(&self, other: &ContainerSeal) -> bool {
        self.salt == other.salt && self.place == other.place
    }
}

impl Eq for ContainerSeal {}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use onefold_testbed::Rng;

    use super::*;

    /// Chance that repeats itself in each clone of a machine.
    struct Repeated(Mutex<Rng>);

    impl Random for Repeated {
        fn fill(&self, into: &mut [u8]) -> Result<()> {
            self.0.lock().unwrap().fill(into);
            Ok(())
        }
    }

    fn repeated() -> Arc<dyn Random> {
        Arc::new(Repeated(Mutex::new(Rng::new(5))))
    }

    fn sealing() -> Sealing {
        let keys = Keys::create([1; 16], &*repeated()).unwrap();
        Sealing::new(&keys, repeated(), Flaws::default()).unwrap()
    }

    /// Metadata of containers are sealed by their domain: see below.
    const KINDS: [What; 11] = [
        What::Label,
        What::Frame,
        What::Snapshot,
        What::SnapshotPart,
        What::Leaf,
        What::MapPage,
        What::Counts,
        What::IndexPage,
        What::CountsPage,
        What::CountsDirectory,
        What::CountsHeader,
    ];

    #[test]
    fn rule_29_nothing_of_an_archive_opens_as_another_kind_or_in_another_place() {
        let sealing = sealing();
        for what in KINDS {
            let mut bytes = *b"what only one place has";
            let tag = sealing.seal(what, (3, 4), b"beside", &mut bytes).unwrap();
            let opens = |what: What, place: (u64, u64), beside: &[u8]| {
                let mut copy = bytes;
                sealing.open(what, place, beside, &mut copy, &tag)
            };
            assert!(opens(what, (3, 4), b"beside"));
            for other in KINDS.into_iter().filter(|other| *other != what) {
                assert!(!opens(other, (3, 4), b"beside"), "{what:?} as {other:?}");
            }
            for place in [(4, 3), (3, 5), (2, 4), (3 | 1 << 40, 4), (3, 4 | 1 << 48)] {
                assert!(!opens(what, place, b"beside"), "{what:?} at {place:?}");
            }
            assert!(!opens(what, (3, 4), b"besides"), "{what:?}");
        }
    }

    #[test]
    fn rule_29_a_group_opens_in_its_place_of_its_container_only() {
        let sealing = sealing();
        let domain = sealing.domain(FIRST_DOMAIN).unwrap();
        let seal = |archive, id, kind, salt| domain.container([archive; 16], id, kind, [salt; 32]);
        let mut stored = b"a group of a container".to_vec();
        let tag = seal(1, 2, 1, 3).unwrap().seal(4, 100, &mut stored).unwrap();
        stored.extend_from_slice(&tag);
        let opens = |by: Result<ContainerSeal>, group, raw, stored: &[u8]| {
            by.unwrap().open(group, raw, &mut stored.to_vec()).is_some()
        };
        assert!(opens(seal(1, 2, 1, 3), 4, 100, &stored));
        for other in [seal(2, 2, 1, 3), seal(1, 3, 1, 3), seal(1, 2, 2, 3), seal(1, 2, 1, 4)] {
            assert!(!opens(other, 4, 100, &stored));
        }
        assert!(!opens(seal(1, 2, 1, 3), 5, 100, &stored), "another group");
        assert!(!opens(seal(1, 2, 1, 3), 4, 101, &stored), "another length");
        assert!(!opens(seal(1, 2, 1, 3), 4, 100, &stored[1..]), "a byte less");
        for bit in 0..stored.len() * 8 {
            let mut turned = stored.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(seal(1, 2, 1, 3), 4, 100, &turned), "bit {bit}");
        }
    }

    #[test]
    fn rule_29_no_two_containers_have_one_salt_though_chance_repeats_itself() {
        let salt = |of: &[&[u8]]| {
            let sealing = sealing();
            *sealing.salt(&sealing.domain(FIRST_DOMAIN).unwrap(), of).unwrap().expose()
        };
        assert_eq!(salt(&[b"one", b"content"]), salt(&[b"one", b"content"]));
        assert_ne!(salt(&[b"one", b"content"]), salt(&[b"another", b"content"]));
        assert_ne!(salt(&[b"one", b"content"]), salt(&[b"onec", b"ontent"]));
        let sealing = sealing();
        let domain = sealing.domain(FIRST_DOMAIN).unwrap();
        let one = sealing.salt(&domain, &[b"one"]).unwrap();
        let other = sealing.salt(&domain, &[b"one"]).unwrap();
        assert!(!one.equals(other.expose()), "chance has its part, too");
    }

    /// Two domains that have one key, as a mistake would give them.
    fn of_one_key(flaws: Flaws) -> [DomainSealing; 2] {
        let keys = Keys::create([1; 16], &*repeated()).unwrap();
        let key = keys.domain(FIRST_DOMAIN).unwrap();
        [1, 2].map(|number| DomainSealing::new((number, 0, key, None), None, flaws).unwrap())
    }

    #[test]
    fn rule_25_the_number_of_a_domain_is_proven_by_each_tag_of_its_containers() {
        let opens = |flaws: Flaws| {
            let [one, other] = of_one_key(flaws);
            let header = |domain: &DomainSealing| {
                let mut header = vec![7; 112];
                header[DOMAIN_AT..DOMAIN_AT + 4].copy_from_slice(&domain.number().to_le_bytes());
                header
            };
            let mut metadata = *b"metadata of a container";
            let tag = one.seal_metadata(5, &header(&one), &mut metadata).unwrap();
            let opened = |domain: &DomainSealing, number: &DomainSealing| {
                domain.open_metadata(5, &header(number), &mut metadata.clone(), &tag)
            };
            assert!(opened(&one, &one));
            let of_metadata = opened(&one, &other) || opened(&other, &other);
            let group = |domain: &DomainSealing| domain.container([1; 16], 2, 1, [3; 32]).unwrap();
            let mut stored = b"a group of a container".to_vec();
            let tag = group(&one).seal(4, 100, &mut stored).unwrap();
            stored.extend_from_slice(&tag);
            let opened =
                |domain: &DomainSealing| group(domain).open(4, 100, &mut stored.clone()).is_some();
            assert!(opened(&one));
            of_metadata || opened(&other)
        };
        assert!(!opens(Flaws::default()));
        assert!(opens(Flaws { number_unproven: true, ..Flaws::default() }));
    }

    #[test]
    fn rule_25_no_two_domains_share_a_working_key() {
        let mut keys = Keys::create([1; 16], &*repeated()).unwrap();
        let other = keys.add_domain("a customer", &*repeated()).unwrap();
        let sealing = Sealing::new(&keys, repeated(), Flaws::default()).unwrap();
        let [one, other] = [FIRST_DOMAIN, other].map(|number| sealing.domain(number).unwrap());
        let all = |domain: &DomainSealing| {
            [&domain.containers, &domain.salts, &domain.fingerprints, &domain.cuts]
                .map(|key| *key.expose())
        };
        assert!(all(&one).iter().zip(all(&other)).all(|(one, other)| *one != other));
        assert!(one.borders().is_none() && other.borders().is_some());
        let mut bytes = *b"metadata";
        let tag = one.seal_metadata(1, &[0; 112], &mut bytes).unwrap();
        assert!(!other.open_metadata(1, &[0; 112], &mut bytes, &tag));
    }

    #[test]
    fn rule_24_a_domain_opens_by_two_data_keys_until_the_log_says_that_one_is_erased() {
        let mut keys = Keys::create([1; 16], &*repeated()).unwrap();
        let sealing = Sealing::new(&keys, repeated(), Flaws::default()).unwrap();
        let first = sealing.domain(0).unwrap();
        assert!(sealing.keep(0, 1).unwrap().is_none(), "there is no newer key yet");
        let mut page = *b"a page of the chunk index";
        let tag = sealing.seal(What::IndexPage, (1, 2), &[], &mut page).unwrap();
        let (from, index) = (super::super::ContainerId(9), 3);
        let rotation = Rotation { domain: 0, generation: 1, from, index };
        sealing.follow([changed(&rotation, None, false)].into_iter()).unwrap();
        // The log asks for a key that is not there: nothing is sealed by the older one any more.
        assert_eq!(sealing.domain_to_write(0).err().unwrap().kind(), Kind::Stopped);
        assert_eq!((sealing.generation_of(0, 8), sealing.generation_of(0, 9)), (0, 1));
        keys.rotate_domain(0, &*repeated()).unwrap();
        keys.saw(9);
        sealing.renew_domains(&keys, sealing.news()).unwrap();
        let second = sealing.domain_to_write(0).unwrap();
        assert_eq!((first.generation(), second.generation()), (0, 1));
        for (one, other) in [
            (&first.containers, &second.containers),
            (&first.salts, &second.salts),
            (&first.fingerprints, &second.fingerprints),
            (&first.cuts, &second.cuts),
        ] {
            assert!(!one.equals(other.expose()));
        }
        assert!(sealing.domain_at(0, 0).is_ok() && sealing.domain_at(0, 2).is_err());
        assert!(sealing.open(What::IndexPage, (1, 2), &[], &mut page.clone(), &tag));
        // The fingerprints of the older key stay.
        let stay = |sealing: &Sealing| {
            let mut stay = 0;
            sealing.older_fingerprints(0, &mut |key| {
                stay += usize::from(key.equals(first.fingerprints.expose()));
            });
            stay
        };
        assert_eq!(stay(&sealing), 1);
        let kept = sealing.keep(0, 1).unwrap().unwrap();
        sealing.follow([changed(&rotation, Some(&kept), true)].into_iter()).unwrap();
        assert_eq!(stay(&sealing), 1);
        assert!(sealing.domain_at(0, 0).is_err() && sealing.domain_at(0, 1).is_ok());
        assert!(!sealing.open(What::IndexPage, (1, 2), &[], &mut page.clone(), &tag));
        // A key area that has it does not bring it back.
        keys.saw(10);
        sealing.renew_domains(&keys, sealing.news()).unwrap();
        assert!(sealing.domain_at(0, 0).is_err());
        // Kept keys open for its own domain and generation alone.
        let now = sealing.domain(0).unwrap();
        assert!(KeptKeys::open(&kept, (0, 1), &now.kept).unwrap().is_some());
        for other in [(2, 1), (0, 2)] {
            assert!(KeptKeys::open(&kept, other, &now.kept).unwrap().is_none());
        }
        let mut torn = kept;
        torn[3] ^= 1;
        // Nothing is read or written where it does not open, now or later.
        for _ in 0..2 {
            sealing.follow([changed(&rotation, Some(&torn), true)].into_iter()).unwrap();
            let refused = sealing.domain(0).err().unwrap();
            assert!(refused.to_string().contains("another copy"), "{refused}");
        }
        sealing.follow([changed(&rotation, Some(&kept), true)].into_iter()).unwrap();
        assert!(sealing.domain(0).is_ok());
    }

    #[test]
    fn rule_24_a_domain_is_not_read_without_the_fingerprints_of_its_older_keys() {
        let mut keys = Keys::create([1; 16], &*repeated()).unwrap();
        let (said, _) = changed_twice(&mut keys, 0);
        let sealing = Sealing::new(&keys, repeated(), Flaws::default()).unwrap();
        let [(first, kept), (second, newest)] = &said[..] else { unreachable!() };
        sealing.follow([changed(first, Some(kept), true)].into_iter()).unwrap();
        // The key area has the second change alone, and nothing is said of the key before.
        sealing.follow([changed(second, None, false)].into_iter()).unwrap();
        let refused = sealing.domain(0).err().unwrap();
        let said = refused.to_string();
        assert!(refused.kind() == Kind::Denied && said.contains("older than its file"), "{said}");
        sealing.follow([changed(second, Some(newest), true)].into_iter()).unwrap();
        assert!(sealing.domain(0).is_ok());
    }

    fn changed<'a>(rotation: &'a Rotation, kept: Option<&'a Kept>, erased: bool) -> KeyChanged<'a> {
        KeyChanged { rotation, kept, erased }
    }

    /// A domain whose data key was changed twice, what the log says of it, and all of its data keys.
    fn changed_twice(
        keys: &mut Keys,
        number: u32,
    ) -> (Vec<(Rotation, Kept)>, Vec<Arc<DomainSealing>>) {
        let sealing = Sealing::new(keys, repeated(), Flaws::default()).unwrap();
        let (mut said, mut all): (Vec<(Rotation, Kept)>, _) = (Vec::new(), Vec::new());
        for generation in 1..=2 {
            all.push(sealing.domain(number).unwrap());
            keys.rotate_domain(number, &*repeated()).unwrap();
            keys.saw(keys.sequence() + 10);
            let from = super::super::ContainerId(u64::from(generation));
            let rotation = Rotation { domain: number, generation, from, index: 0 };
            sealing.follow([changed(&rotation, None, false)].into_iter()).unwrap();
            sealing.renew_domains(keys, sealing.news()).unwrap();
            let kept = sealing.keep(number, generation).unwrap().unwrap();
            sealing.follow([changed(&rotation, Some(&kept), true)].into_iter()).unwrap();
            said.push((rotation, kept));
            keys.drop_older(number, &*repeated()).unwrap();
            keys.saw(keys.sequence() + 10);
            sealing.renew_domains(keys, sealing.news()).unwrap();
        }
        all.push(sealing.domain(number).unwrap());
        (said, all)
    }

    #[test]
    fn rule_24_kept_keys_open_by_newer_data_keys_alone() {
        for number in [0, 1] {
            let mut keys = Keys::create([1; 16], &*repeated()).unwrap();
            keys.add_domain("a customer", &*repeated()).unwrap();
            let (said, all) = changed_twice(&mut keys, number);
            // Another process, which has the newest key alone, finds all fingerprints and the first ends.
            let sealing = Sealing::new(&keys, repeated(), Flaws::default()).unwrap();
            let changes = said.iter().map(|(rotation, kept)| changed(rotation, Some(kept), true));
            sealing.follow(changes).unwrap();
            let mut found = Vec::new();
            sealing.older_fingerprints(number, &mut |key| found.push(*key.expose()));
            let older = [&all[1], &all[0]].map(|one| *one.fingerprints.expose());
            assert_eq!(found, older);
            // So does one that read the log before the key area had these keys.
            let mut first = Keys::create([1; 16], &*repeated()).unwrap();
            first.add_domain("a customer", &*repeated()).unwrap();
            let late = Sealing::new(&first, repeated(), Flaws::default()).unwrap();
            let changes = said.iter().map(|(rotation, kept)| changed(rotation, Some(kept), true));
            late.follow(changes).unwrap();
            late.renew_domains(&keys, late.news()).unwrap();
            let mut found = Vec::new();
            late.older_fingerprints(number, &mut |key| found.push(*key.expose()));
            assert_eq!(found, older);
            assert_eq!(sealing.borders(number), all[0].borders);
            // Whoever was locked out by a change has what was before it, and gets nothing of what came.
            for (generation, (_, kept)) in (1..).zip(&said) {
                for (of, key) in (0..).zip(&all) {
                    let opens = KeptKeys::open(kept, (number, generation), &key.kept).unwrap();
                    assert_eq!(opens.is_some(), of == generation, "{of} opens {generation}");
                    // Each has the seed of the first ends, so that none is lost with another one.
                    let borders = opens.and_then(|opened| opened.borders);
                    let first = all[0].borders.unwrap_or(0);
                    assert_eq!(borders, (of == generation).then_some(first));
                }
                let store = keys.store_key(Use::KEPT);
                assert!(KeptKeys::open(kept, (number, generation), &store).unwrap().is_none());
                let (mut plain, mut tag) = (*kept, [0; TAG_BYTES]);
                tag.copy_from_slice(&kept[KEPT_BYTES..]);
                let place = kept_at(number, generation);
                assert!(!sealing.archive.open(place, &[], &mut plain[..KEPT_BYTES], &tag));
            }
        }
    }

    #[test]
    fn rule_26_nothing_stays_of_the_data_keys_of_a_domain_that_was_erased() {
        let mut keys = Keys::create([1; 16], &*repeated()).unwrap();
        keys.add_domain("a customer", &*repeated()).unwrap();
        let (said, _) = changed_twice(&mut keys, 1);
        let sealing = Sealing::new(&keys, repeated(), Flaws::default()).unwrap();
        let all = || said.iter().map(|(rotation, kept)| changed(rotation, Some(kept), true));
        sealing.follow(all()).unwrap();
        let left = |sealing: &Sealing| {
            let mut left = 0;
            sealing.older_fingerprints(1, &mut |_| left += 1);
            left
        };
        assert_eq!(left(&sealing), 2);
        sealing.erase(1);
        assert_eq!((left(&sealing), sealing.borders(1)), (0, None));
        // Later words of the log about that domain change nothing.
        sealing.follow(all()).unwrap();
        assert_eq!((left(&sealing), sealing.newest_generation(1)), (0, 0));
        // Another process finds out by the key area.
        let other = Sealing::new(&keys, repeated(), Flaws::default()).unwrap();
        other.follow(all()).unwrap();
        assert_eq!(left(&other), 2);
        // The keys that are left open nothing for a process that comes later.
        keys.erase_domain(1, &*repeated()).unwrap();
        keys.saw(keys.sequence() + 10);
        other.renew_domains(&keys, other.news()).unwrap();
        assert_eq!((left(&other), other.borders(1), other.newest_generation(1)), (0, None, 0));
        let later = Sealing::new(&keys, repeated(), Flaws::default()).unwrap();
        later.follow(all()).unwrap();
        assert_eq!((left(&later), later.borders(1)), (0, None));
    }

    #[test]
    fn rule_26_an_erased_domain_is_told_from_one_that_never_was() {
        let mut keys = Keys::create([1; 16], &*repeated()).unwrap();
        let number = keys.add_domain("a customer", &*repeated()).unwrap();
        let sealing = Sealing::new(&keys, repeated(), Flaws::default()).unwrap();
        assert!(sealing.domain(number).is_ok() && !sealing.is_erased(number));
        keys.erase_domain(number, &*repeated()).unwrap();
        keys.saw(9);
        sealing.renew_domains(&keys, sealing.news()).unwrap();
        assert!(sealing.is_erased(number) && !sealing.is_erased(number + 1));
        for number in [number, number + 1] {
            assert_eq!(sealing.domain(number).err().unwrap().kind(), Kind::Denied);
        }
        // A key area that has the domain still does not bring it back.
        let mut older = Keys::create([1; 16], &*repeated()).unwrap();
        older.add_domain("a customer", &*repeated()).unwrap();
        older.saw(10);
        sealing.renew_domains(&older, sealing.news()).unwrap();
        assert!(sealing.is_erased(number) && sealing.domain(number).is_err());
    }
}
