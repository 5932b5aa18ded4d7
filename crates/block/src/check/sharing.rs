//! Maps that share pages: every page once, and whether the accounts of table 8 say how it is named.
//!
//! An entry of a page counts for what it names unless the page's lender has the same entry in the
//! same place; roots in the catalogue always count. So a page that is not in table 8 is named by one
//! entry that counts, however many pages repeat that entry.
//!
//! Lenders end: a page that borrowed from itself would let nothing count for what it names. A circle of
//! lenders is only in a store that was crafted.
//!
//! Memory: about 230 bytes for each page that table 8 has, and two bits for each block of a zone
//! with pages of maps.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use onefold_core::{Block, Pba, Result, VolumeId};

use super::{
    accounts::{Account, Accounts},
    per_leaf::Sums,
    report::Place,
    tables::Checker,
    usage::Usage,
    walk::{Visit, children},
};
use crate::block_set::BlockSet;
use crate::format::{
    catalogue::Volume,
    domain_entry::DomainEntry,
    page::{self, PageId, Pointer, Root, Table},
    record::WindowNumber,
    share::Share,
};

/// One walk over all maps, in which each page is seen once.
struct SharedPass<'c, 'u, 'a> {
    checker: &'c mut Checker<'a>,
    accounts: &'c mut Accounts,
    usage: &'u mut Usage,
    /// True when pages are seen for the first time, and judged.
    first: bool,
    seen: BlockSet,
    /// Pages that an entry counts for.
    counted: BlockSet,
    /// The volume that is walked; one that is leaving for pages that no map names.
    volume: Volume,
    /// The domains of families, for pages that no map names.
    families: HashMap<u32, u32>,
    mapped: u64,
}

impl Checker<'_> {
    /// Reads the accounts of shared pages, whole.
    pub(super) fn accounts(&mut self) -> Accounts {
        let mut accounts = Accounts::default();
        let root = self.state.shares;
        let mut twice = Vec::new();
        self.walk(Table::Shares, 0, &root, None, &mut |checker, id, _, page| {
            let per_leaf = Table::Shares.per_leaf();
            for slot in 0..per_leaf {
                let share = Share::get(page, slot);
                if share == Share::default() {
                    continue;
                }
                let at = Pba(id.index * per_leaf + slot);
                if checker.geometry.holds(at) {
                    accounts.pages.insert(at, Account { share, ..Account::default() });
                } else {
                    twice.push(at);
                }
            }
        });
        for at in twice {
            self.report.problem(Place::Block(at), "it has an account, but holds no page of a map");
        }
        accounts
    }

    /// Walks all maps, and counts what their leaves name. Returns how many entries count.
    pub(super) fn shared_maps(
        &mut self,
        accounts: &mut Accounts,
        usage: &mut Usage,
        first: bool,
    ) -> u64 {
        let geometry = self.geometry;
        let (walker, committed) = (self.walker, self.state.committed);
        let maps: Vec<Volume> =
            self.volumes.iter().filter(|volume| volume.map.height > 0).cloned().collect();
        let orphans: Vec<Pba> = accounts
            .pages
            .iter()
            .filter(|(_, account)| account.share.is_orphan())
            .map(|(&at, _)| at)
            .collect();
        let families = self.volumes.iter().map(|one| (one.family(), one.domain)).collect();
        let mut pass = SharedPass {
            families,
            checker: self,
            accounts,
            usage,
            first,
            seen: BlockSet::new(geometry),
            counted: BlockSet::new(geometry),
            volume: Volume::leaving(VolumeId(0), 0, 0, Root::default()),
            mapped: 0,
        };
        for volume in maps {
            let (level, index, top) = (volume.map.height - 1, volume.top_index(), volume.map.page);
            let id = PageId { table: Table::Map, volume: volume.family(), level, index };
            let orphan = std::mem::replace(&mut pass.volume, volume);
            pass.count(id, &top);
            if pass.named(id, &top, committed) {
                walker.walk_from(id, &top, &mut pass);
            }
            pass.volume = orphan;
        }
        let orphans = if pass.checker.shares_dark { Vec::new() } else { orphans };
        for at in orphans {
            match pass.header(at) {
                Some((id, pointer)) if pass.named(id, &pointer, committed) => {
                    pass.volume.domain = pass.families.get(&id.volume).copied().unwrap_or_default();
                    walker.walk_from(id, &pointer, &mut pass);
                }
                None if first => {
                    let what =
                        "nothing names it but pages that borrow from it, and it can't be read";
                    pass.checker.report.problem(Place::Block(at), what);
                    pass.checker.maps_dark = true;
                }
                Some(_) | None => {}
            }
        }
        let mapped = pass.mapped;
        if first {
            let SharedPass { seen, counted, .. } = pass;
            self.judge_accounts(accounts, &seen, &counted);
            if !(self.maps_dark || self.shares_dark || self.catalogue_dark) {
                self.judge_counts();
            }
        }
        mapped
    }

    /// Compares the accounts with what the maps say.
    fn judge_accounts(&mut self, accounts: &mut Accounts, seen: &BlockSet, counted: &BlockSet) {
        if self.maps_dark || self.shares_dark || self.catalogue_dark {
            return;
        }
        let lenders: Vec<(Pba, Pointer)> = accounts
            .pages
            .iter()
            .filter_map(|(&at, account)| Some((at, account.share.lender?)))
            .collect();
        for (at, lender) in lenders {
            let Some(of) = accounts.pages.get(&at).and_then(|account| account.known) else {
                continue;
            };
            let account = accounts.pages.get_mut(&lender.address);
            let known = account.as_ref().and_then(|account| account.known);
            if known.is_none() && self.counts_too_high() {
                // Only a page that could not be read named it.
                continue;
            }
            if known.is_none_or(|(id, page)| id != of.0 || page != lender)
                || lender.birth > of.1.birth
            {
                let what =
                    format!("it borrows from block {}, which is no such page", lender.address);
                self.report.problem(Place::Page(of.0, at), what);
            }
            account.into_iter().for_each(|account| account.borrowers += 1);
        }
        for (id, at) in circles(accounts) {
            let what =
                "it borrows from itself, by way of its lenders: nothing counts what they name";
            self.report.problem(Place::Page(id, at), what);
        }
        let too_high = self.counts_too_high();
        for (&at, account) in &accounts.pages {
            let Account { share, named, borrowers, known } = *account;
            if too_high && share.count >= named && share.borrowers >= borrowers {
                continue;
            }
            let Some((id, _)) = known.filter(|_| seen.contains(at)) else {
                let what = "it has an account, but no map has such a page";
                self.report.problem(Place::Block(at), what);
                continue;
            };
            if (share.count, share.borrowers) != (named, borrowers) {
                let what = format!(
                    "its account says that {} entries count for it and {} pages borrow from it, but {named} and {borrowers} do",
                    share.count, share.borrowers
                );
                self.report.problem(Place::Page(id, at), what);
            }
        }
        let mut alone = 0;
        for (zone, pages) in seen.zones(0..u64::MAX) {
            for n in pages.iter() {
                let at = Pba(zone * self.geometry.zone_blocks + n as u64);
                let unnamed = !counted.contains(at) && !accounts.pages.contains_key(&at);
                alone += u64::from(unnamed);
            }
        }
        if alone > 0 && !too_high {
            let what =
                format!("{alone} pages of maps have no account, and no entry counts for them");
            self.report.problem(Place::Store, what);
        }
    }
}

impl Checker<'_> {
    /// Notes what a leaf of a map of a domain names.
    fn count_leaf(&mut self, domain: u32, at: &Pointer, page: &Block) {
        let mut counts = std::mem::take(&mut self.counts);
        counts.leaf(domain, at.address, page, |pba| self.may_hold(pba));
        self.counts = counts;
    }

    /// Compares the counts with what the maps name, all of which could be walked.
    fn judge_counts(&mut self) {
        let mut sums = Sums::new();
        let mut wrong = BTreeMap::new();
        for volume in self.volumes.iter().filter(|volume| !volume.is_leaving()) {
            let Some(counted) = volume.mapped() else { continue };
            let found = self.counts.mapped.of_map(&self.walker, volume, &mut sums);
            if let Some(found) = found.filter(|found| *found != counted) {
                wrong.insert(volume.id, (found, counted));
            }
        }
        for (id, (found, counted)) in wrong {
            let what = format!(
                "the catalogue counts {counted} addresses that have a block, but there are {found}"
            );
            self.report.problem(Place::Volume(id), what);
            self.counts.wrong.insert(id, found);
        }
        let saturated = self.report.saturated_blocks;
        for DomainEntry { number, stored, .. } in self.state.domains.clone() {
            let found = self.counts.stored(number);
            let what = match stored {
                None => format!(
                    "nobody knows how many blocks domain {number} stores, since a page could not be read: \
                     onefold repair counts them"
                ),
                Some(stored) if stored == found => continue,
                Some(stored) if stored > found && self.counts_too_high() => continue,
                // A block whose count stays takes space also when nothing names it any more, and then
                // nobody knows whose it is.
                Some(stored) if stored.saturating_sub(found) <= saturated && stored > found => {
                    continue;
                }
                Some(stored) => format!(
                    "it counts {stored} blocks that domain {number} stores, but there are {found}"
                ),
            };
            self.report.problem(Place::Superblock((self.state.sequence % 2) as u32), what);
        }
    }
}

/// Pages that borrow from themselves, one of each circle. Every lender is older than its borrower or
/// of its age, so all pages of a circle are of one age.
fn circles(accounts: &Accounts) -> Vec<(PageId, Pba)> {
    let mut found = Vec::new();
    // The walk in which a page was met first.
    let mut met: HashMap<Pba, usize> = HashMap::new();
    for (walk, (&first, account)) in accounts.pages.iter().enumerate() {
        let (mut at, mut next) = (first, account.share.lender);
        while let Some(lender) = next {
            match met.entry(at) {
                Entry::Occupied(known) => {
                    let is_circle = *known.get() == walk;
                    let page = accounts.pages.get(&at).and_then(|account| account.known);
                    found.extend(page.filter(|_| is_circle).map(|(id, _)| (id, at)));
                    break;
                }
                Entry::Vacant(new) => drop(new.insert(walk)),
            }
            at = lender.address;
            next = accounts.pages.get(&at).and_then(|account| account.share.lender);
        }
    }
    found
}

impl SharedPass<'_, '_, '_> {
    /// An entry counts for a page.
    fn count(&mut self, id: PageId, pointer: &Pointer) {
        let fresh =
            self.checker.geometry.holds(pointer.address) && self.counted.insert(pointer.address);
        match self.accounts.pages.get_mut(&pointer.address) {
            Some(account) => account.named += u32::from(self.first),
            None if !fresh && self.first => {
                let what = "two entries count for it, and it has no account";
                self.checker.report.problem(Place::Page(id, pointer.address), what);
            }
            None => {}
        }
    }

    /// The page from which a page borrows. `Err` when it can't be read.
    fn lender(&self, id: PageId, page: &Pointer) -> Result<Option<Box<Block>>> {
        let account = self.accounts.pages.get(&page.address);
        let Some(lender) = account.and_then(|account| account.share.lender) else {
            return Ok(None);
        };
        let mut blocks = Block::zeroed_vec(1);
        let mut results = self.checker.walker.read(&[(id, lender)], &mut blocks);
        results.pop().unwrap_or(Ok(()))?;
        Ok(blocks.pop().map(Box::new))
    }

    /// The identity of a page by its own header.
    fn header(&self, at: Pba) -> Option<(PageId, Pointer)> {
        let walker = self.checker.walker;
        let mut blocks = Block::zeroed_vec(1);
        let mut reads = [onefold_core::Read::new(at, &mut blocks)];
        walker.disk.read(&mut reads);
        let [read] = reads;
        read.result.ok()?;
        let named = page::header(walker.identity, at, &mut blocks[0].0)?;
        (named.0.table == Table::Map && named.1.address == at).then_some(named)
    }
}

impl Visit for SharedPass<'_, '_, '_> {
    fn named(&mut self, id: PageId, pointer: &Pointer, parent: WindowNumber) -> bool {
        let at = pointer.address;
        if !self.checker.geometry.holds(at) {
            return self.first && self.checker.admit(id, pointer, parent);
        }
        if let Some(account) = self.accounts.pages.get_mut(&at) {
            let known = *account.known.get_or_insert((id, *pointer));
            if known != (id, *pointer) && self.first {
                let what = "two pages name it as different ones";
                self.checker.report.problem(Place::Page(id, at), what);
            }
        }
        if !self.seen.insert(at) {
            return false;
        }
        !self.first || self.checker.admit(id, pointer, parent)
    }

    fn page(&mut self, id: PageId, pointer: &Pointer, page: Result<&Block>) {
        let found = page.and_then(|page| Ok((page, self.lender(id, pointer)?)));
        let (page, lender) = match found {
            Ok(found) => found,
            Err(e) => {
                if self.first {
                    self.checker.damaged(id, pointer, &e);
                }
                return;
            }
        };
        if self.first {
            self.checker.read(id, pointer, page);
        }
        if id.level == 0 {
            let SharedPass { checker, usage, first, volume, .. } = self;
            if *first {
                checker.count_leaf(volume.domain, pointer, page);
            }
            let lender = lender.as_deref();
            self.mapped += checker.map_leaf(usage, volume, *first, id, pointer, page, lender);
            return;
        }
        for (child, named) in children(id, page) {
            let slot = child.index - id.index.saturating_mul(page::FANOUT);
            let lent = lender.as_ref().map(|lender| page::pointer(lender, slot));
            if lent != Some(named) {
                self.count(child, &named);
            }
        }
    }
}
