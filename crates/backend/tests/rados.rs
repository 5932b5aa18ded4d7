//! The object store on a real Ceph cluster: `cargo xtask ceph test` starts one and runs these.
//!
//! `ONEFOLD_TEST_CEPH` names the cluster's configuration. The pool `meta` is replicated; every
//! other one named `chunks-…` is a chunk pool.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use onefold_backend::{
    RadosObjects,
    rados::{Connection, PoolInfo},
};
use onefold_core::object::{
    Change, Guard, ObjectName, ObjectStore, PoolKind, Read, ReadPart, Refusal, Write,
};
use onefold_testbed::contract;

fn connect() -> Arc<Connection> {
    let configuration = PathBuf::from(std::env::var_os("ONEFOLD_TEST_CEPH").unwrap());
    Connection::open(Some(&configuration), Duration::from_secs(20)).unwrap()
}

fn session(chunks: &str) -> RadosObjects {
    let connection = connect();
    let (metadata, chunks) = (connection.pool("meta").unwrap(), connection.pool(chunks).unwrap());
    RadosObjects::new(connection, &metadata, &chunks).unwrap()
}

fn chunk_pools() -> Vec<PoolInfo> {
    let pools: Vec<PoolInfo> = connect()
        .pools()
        .unwrap()
        .into_iter()
        .filter(|pool| pool.name.starts_with("chunks-"))
        .collect();
    assert!(
        pools.iter().any(|pool| pool.kind == PoolKind::Replicated)
            && pools.iter().any(|pool| pool.kind == PoolKind::Erasure)
    );
    pools
}

fn write(
    store: &RadosObjects,
    name: &str,
    guards: &[Guard],
    changes: &[Change],
) -> Result<(), Refusal> {
    let op = Write {
        object: ObjectName::metadata(name),
        guards: guards.to_vec(),
        changes: changes.to_vec(),
    };
    store.write(&[op]).remove(0).map(|_| ())
}

#[test]
#[ignore = "needs a Ceph cluster: cargo xtask ceph test"]
fn the_contract_of_object_stores_holds_on_every_kind_of_pool() {
    for pool in chunk_pools() {
        for (check, result) in
            contract::objects::run(&session(&pool.name), &format!("contract.{}.", pool.name))
        {
            assert_eq!(result, Ok(()), "{check}, on chunk pool {}", pool.name);
            println!("{}: {check}", pool.name);
        }
    }
}

#[test]
#[ignore = "needs a Ceph cluster: cargo xtask ceph test"]
fn a_fenced_session_is_shut_out_and_its_lock_can_be_broken() {
    let (one, two) = (session("chunks-2"), session("chunks-2"));
    assert_ne!(one.identity(), two.identity());
    let object = ObjectName::metadata("fenced");
    one.lock(&object, "owner", "a", None).unwrap();
    assert!(matches!(two.lock(&object, "owner", "a", None), Err(Refusal::Busy)));
    write(&one, "fenced", &[], &[Change::Full(b"one".to_vec())]).unwrap();
    let holder = two.holder(&object, "owner").unwrap().unwrap();
    assert_eq!(holder.identity, one.identity());
    two.fence(&holder.identity).unwrap();
    two.break_lock(&object, "owner", &holder).unwrap();
    two.lock(&object, "owner", "b", None).unwrap();
    assert!(matches!(
        write(&one, "fenced", &[], &[Change::Full(b"late".to_vec())]),
        Err(Refusal::Fenced)
    ));
    let read = Read { object: object.clone(), parts: vec![ReadPart::Data(0, 10)] };
    assert!(matches!(one.read(std::slice::from_ref(&read))[0], Err(Refusal::Fenced)));
    assert_eq!(two.read(&[read])[0].as_ref().unwrap().data(0), b"one");
    write(&two, "fenced", &[], &[Change::Remove]).unwrap();
}

#[test]
#[ignore = "needs a Ceph cluster: cargo xtask ceph test"]
fn a_lease_ends_by_itself() {
    let (one, two) = (session("chunks-2"), session("chunks-2"));
    let object = ObjectName::metadata("leased");
    one.lock(&object, "lease", "a", Some(Duration::from_secs(1))).unwrap();
    assert!(matches!(two.lock(&object, "lease", "b", None), Err(Refusal::Busy)));
    std::thread::sleep(Duration::from_millis(1500));
    two.lock(&object, "lease", "b", Some(Duration::from_secs(1))).unwrap();
    write(&two, "leased", &[], &[Change::Remove]).unwrap();
}

#[test]
#[ignore = "needs a Ceph cluster: cargo xtask ceph test"]
fn a_batch_keeps_the_order_of_operations_on_one_object() {
    let store = session("chunks-2");
    let object = ObjectName::metadata("ordered");
    let _ = write(&store, "ordered", &[], &[Change::Remove]);
    let value = |n: u32| if n == 0 { Vec::new() } else { n.to_le_bytes().to_vec() };
    let step = |n: u32| Write {
        object: object.clone(),
        guards: if n == 0 {
            vec![Guard::Absent]
        } else {
            vec![Guard::Omap(b"n".to_vec(), value(n))]
        },
        changes: vec![Change::SetOmap(vec![(b"n".to_vec(), value(n + 1))])],
    };
    let steps: Vec<Write> = (0..500).map(step).collect();
    assert!(store.write(&steps).iter().all(Result::is_ok));
    write(&store, "ordered", &[], &[Change::Remove]).unwrap();
}

#[test]
#[ignore = "needs a Ceph cluster: cargo xtask ceph test"]
fn large_batches_and_large_objects_come_back() {
    let store = session("chunks-2");
    let name = |n: usize| ObjectName::metadata(format!("large.{n}"));
    let data = |n: usize| vec![n as u8 + 1; 4 << 20];
    let write = |n| Write { object: name(n), guards: vec![], changes: vec![Change::Full(data(n))] };
    assert!(store.write(&(0..12).map(write).collect::<Vec<_>>()).iter().all(Result::is_ok));
    let read =
        |n| Read { object: name(n), parts: vec![ReadPart::Data(0, u64::MAX), ReadPart::Stat] };
    for (n, answer) in store.read(&(0..12).map(read).collect::<Vec<_>>()).iter().enumerate() {
        assert!(answer.as_ref().unwrap().data(0) == data(n));
    }
    let remove =
        |n| Write { object: name(n), guards: vec![Guard::Exists], changes: vec![Change::Remove] };
    assert!(store.write(&(0..12).map(remove).collect::<Vec<_>>()).iter().all(Result::is_ok));
}

#[test]
#[ignore = "needs a Ceph cluster: cargo xtask ceph test"]
fn a_read_gets_all_its_looks_from_one_moment_while_somebody_writes() {
    let (store, other) = (session("chunks-2"), session("chunks-2"));
    let object = ObjectName::metadata("moments");
    let change = |n: u8| {
        [
            Change::Full(vec![n; 9000]),
            Change::SetOmap(vec![(b"n".to_vec(), vec![n])]),
            Change::SetXattr("n", vec![n]),
        ]
    };
    write(&store, "moments", &[], &change(1)).unwrap();
    std::thread::scope(|scope| {
        let writer = scope
            .spawn(|| (1..=200).for_each(|n| write(&other, "moments", &[], &change(n)).unwrap()));
        while !writer.is_finished() {
            let read = Read {
                object: object.clone(),
                parts: vec![
                    ReadPart::Data(0, 9000),
                    ReadPart::Keys(vec![b"n".to_vec()]),
                    ReadPart::Xattr("n"),
                ],
            };
            let answer = store.read(&[read]).remove(0).unwrap();
            let n = answer.data(0)[0];
            assert!(answer.data(0).iter().all(|byte| *byte == n));
            assert_eq!(
                (answer.pairs(1).0[0].1.as_slice(), answer.xattr(2)),
                (&[n][..], Some(&[n][..]))
            );
        }
    });
    write(&store, "moments", &[], &[Change::Remove]).unwrap();
}
