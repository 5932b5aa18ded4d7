//! The model allows what a crash may leave, and nothing else.

use onefold_core::{VolumeId, VolumeInfo};
use onefold_sim::{
    block::model::{Model, Outcome, Verb},
    checker::Checker,
};
use onefold_testbed::content::{Content, ZEROES};

/// A model with one volume, and three contents.
fn model() -> (Model, [Content; 3]) {
    let mut model = Model::default();
    model.begin(Verb::Create("v".to_owned(), 8));
    assert_eq!(model.taken(VolumeId(1), None), Ok(()));
    let contents = [1, 2, 3].map(|fill| model.contents.intern(&[fill; 4096]));
    (model, contents)
}

fn checker(result: Result<(), onefold_sim::checker::Failure>) -> Option<Checker> {
    result.err().map(|failure| failure.checker)
}

#[test]
fn a_flushed_block_is_right_and_an_unflushed_one_is_any_later_version() {
    let (mut model, [a, b, c]) = model();
    for (ticket, content) in [(1, a), (2, b), (3, c)] {
        model.write(0, 0, content, Outcome::Taken(ticket));
    }
    model.durable(2).unwrap();
    assert_eq!(model.live(0, 0), [c]);
    assert_eq!(checker(model.check_after_crash(0, 0, &[1; 4096])), Some(Checker::DurableSurvives));
    assert_eq!(checker(model.check_after_crash(0, 0, &[2; 4096])), None);
    assert_eq!(checker(model.check_after_crash(0, 0, &[3; 4096])), None);
    assert_eq!(checker(model.check_after_crash(0, 0, &[4; 4096])), Some(Checker::NeverWrong));
}

#[test]
fn what_was_read_after_a_recovery_stays() {
    let (mut model, [a, b, _]) = model();
    model.write(0, 0, a, Outcome::Taken(1));
    model.durable(1).unwrap();
    model.write(0, 0, b, Outcome::Taken(2));
    model.restart();
    model.observe(0, 0, &[1; 4096]).unwrap();
    model.restart();
    assert_eq!(checker(model.observe(0, 0, &[2; 4096])), Some(Checker::RecoveryTwice));
    model.observe(0, 0, &[1; 4096]).unwrap();
}

#[test]
fn a_failed_write_is_there_or_not_until_a_read_tells() {
    let (mut model, [a, b, c]) = model();
    model.write(0, 0, a, Outcome::Taken(1));
    model.write(0, 0, b, Outcome::Failed);
    assert_eq!(model.live(0, 0), [b, a]);
    model.observe(0, 0, &[1; 4096]).unwrap();
    assert_eq!(checker(model.observe(0, 0, &[2; 4096])), Some(Checker::SafeReuse));
    assert_eq!(checker(model.check_after_crash(0, 0, &[2; 4096])), None);
    model.write(0, 0, c, Outcome::Taken(2));
    model.durable(2).unwrap();
    assert!(model.check_after_crash(0, 0, &[2; 4096]).is_err());
}

#[test]
fn other_blocks_contents_and_old_zeroes_are_told_apart() {
    let (mut model, [a, b, _]) = model();
    model.write(0, 0, a, Outcome::Taken(1));
    model.write(0, 1, b, Outcome::Taken(1));
    model.durable(1).unwrap();
    assert_eq!(checker(model.observe(0, 0, &[2; 4096])), Some(Checker::SafeReuse));
    model.clear(0, 0, 2, Outcome::Taken(2));
    assert_eq!(model.live(0, 1), [ZEROES]);
    assert_eq!(checker(model.observe(0, 1, &[2; 4096])), Some(Checker::ZeroesReadZero));
}

#[test]
fn a_verb_in_doubt_happened_or_not_and_nothing_else() {
    let (mut model, [a, ..]) = model();
    let listing = |names: &[(&str, u64)]| -> Vec<(VolumeId, VolumeInfo)> {
        let info = |(name, blocks): &(&str, u64)| VolumeInfo {
            name: (*name).to_owned(),
            size: blocks * 4096,
        };
        names.iter().map(|row| (VolumeId(1), info(row))).collect()
    };
    model.write(0, 6, a, Outcome::Taken(1));
    model.begin(Verb::Resize(0, 4));
    model.restart();
    assert_eq!(checker(model.clone().resolve(&listing(&[("v", 5)]))), Some(Checker::Volumes));
    model.clone().resolve(&listing(&[("v", 8)])).unwrap();
    model.resolve(&listing(&[("v", 4)])).unwrap();
    assert_eq!(model.live(0, 6), [ZEROES]);
}

#[test]
fn a_verb_that_was_taken_and_not_durable_is_there_or_undone() {
    let listing = |blocks: Option<u64>| -> Vec<(VolumeId, VolumeInfo)> {
        blocks
            .iter()
            .map(|blocks| (VolumeId(1), VolumeInfo { name: "v".to_owned(), size: blocks * 4096 }))
            .collect()
    };
    let (mut model, [a, ..]) = model();
    model.write(0, 6, a, Outcome::Taken(1));
    model.durable(1).unwrap();
    model.begin(Verb::Resize(0, 4));
    model.taken(VolumeId(1), Some(2)).unwrap();
    let mut deleted = model.clone();
    model.restart();
    let mut back = model.clone();
    back.resolve(&listing(Some(8))).unwrap();
    assert_eq!(back.live(0, 6).len(), 2);
    model.resolve(&listing(Some(4))).unwrap();
    assert_eq!(model.live(0, 6), [ZEROES]);

    deleted.durable(2).unwrap();
    deleted.begin(Verb::Delete(0));
    deleted.taken(VolumeId(1), Some(3)).unwrap();
    assert!(deleted.volumes().is_empty());
    deleted.restart();
    deleted.clone().resolve(&[]).unwrap();
    assert_eq!(checker(deleted.clone().resolve(&listing(Some(8)))), Some(Checker::Volumes));
    deleted.resolve(&listing(Some(4))).unwrap();
    assert_eq!(deleted.volumes().len(), 1);
}

#[test]
fn tickets_do_not_go_back() {
    let (mut model, _) = model();
    model.durable(5).unwrap();
    assert_eq!(checker(model.durable(4)), Some(Checker::Tickets));
    model.restart();
    model.durable(1).unwrap();
}
