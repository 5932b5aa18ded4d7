//! nbdinfo, nbdcopy, nbdsh, qemu-img, qemu-io and fio.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{LIMIT, SCHEMES, Served, check, sample};
use crate::{
    machine,
    product::path,
    program::{program, run as run_program},
    test::Tally,
};

/// Bytes of the image that the clients copy; its parts of a quarter are data, a hole, data, and the
/// first part again.
const IMAGE_BYTES: usize = 48 << 20;

/// Runs all checks.
pub(super) fn run() -> Result<Tally> {
    let mut tally = Tally::default();
    use_all(&mut tally, "", &[])?;
    for (scheme, options) in SCHEMES {
        use_all(&mut tally, scheme, options)?;
    }
    Ok(tally)
}

/// Uses a store with all clients; that of a `scheme` which is not the default on UNIX sockets
/// alone.
fn use_all(tally: &mut Tally, scheme: &str, options: &[&str]) -> Result<()> {
    let named =
        |what: &str| if scheme.is_empty() { what.to_owned() } else { format!("{scheme}: {what}") };
    let mut served = Served::new("clients", "1G", options, &[("disk", "64M"), ("other", "64M")])?;
    sample(&served.file("image.raw"), IMAGE_BYTES)?;
    for (kind, uri) in
        served.uris("disk").into_iter().filter(|(kind, _)| scheme.is_empty() || *kind == "unix")
    {
        let other = served
            .uris("other")
            .into_iter()
            .find(|(other, _)| *other == kind)
            .map(|(_, uri)| uri)
            .unwrap_or_default();
        let served = &served;
        let checks: [(&str, &dyn Fn() -> Result<()>); 10] = [
            ("nbdcopy in and out", &|| nbdcopy(served, &uri)),
            ("nbdinfo", &|| nbdinfo(&uri)),
            ("nbdcopy between volumes", &|| nbdcopy_between(served, &uri, &other)),
            ("nbdsh", &|| nbdsh(&uri)),
            ("qemu-img convert, compare, map", &|| qemu_img(served, &uri)),
            ("qemu-img convert from qcow2", &|| qemu_img_from_qcow2(served, &other)),
            ("qemu-img bench", &|| qemu_img_bench(&other)),
            ("qemu-io", &|| qemu_io(&uri)),
            ("fio with crc32c", &|| fio(served, &other)),
            ("fio, four connections", &|| fio_parallel(served, &other)),
        ];
        for (name, run) in checks {
            check(tally, &named(&format!("{name} ({kind})")), run);
        }
    }
    check(tally, &named("the store is clean and whole afterwards"), || served.finish());
    if scheme.is_empty() {
        check(tally, "nbdsh by socket activation", || socket_activation(&served));
    }
    Ok(())
}

fn client(name: &str, arguments: &[&str]) -> Result<String> {
    run_program(with(name, arguments), LIMIT)
}

fn with(name: &str, arguments: &[&str]) -> Command {
    let mut command = program(name);
    command.args(arguments);
    command
}

fn same(one: &std::path::Path, two: &std::path::Path, bytes: usize) -> Result<()> {
    let (one, two) = (std::fs::read(one)?, std::fs::read(two)?);
    ensure!(one[..bytes] == two[..bytes], "what came back differs");
    Ok(())
}

fn nbdcopy(served: &Served, uri: &str) -> Result<()> {
    let (image, back) = (served.file("image.raw"), served.file("back.raw"));
    client("nbdcopy", &["--flush", "--connections=4", "--requests=16", path(&image), uri])?;
    client("nbdcopy", &[uri, path(&back)])?;
    same(&image, &back, IMAGE_BYTES)
}

fn nbdinfo(uri: &str) -> Result<()> {
    let info = client("nbdinfo", &[uri])?;
    for line in [
        "export-size: 67108864",
        "is_read_only: false",
        "can_multi_conn: true",
        "can_fua: true",
        "base:allocation",
    ] {
        ensure!(info.contains(line), "'{line}' is not in:\n{info}");
    }
    let list = client("nbdinfo", &["--list", &uri.replace("/disk", "/")])?;
    ensure!(
        list.contains("export=\"disk\"") && list.contains("export=\"other\""),
        "volumes are missing in:\n{list}"
    );
    let map = client("nbdinfo", &["--map", uri])?;
    // 12 MiB each of data, nothing, data and data; nothing beyond the image.
    let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let data: u64 = rows
        .iter()
        .filter(|row| row.get(2) == Some(&"0"))
        .filter_map(|row| row[1].parse::<u64>().ok())
        .sum();
    ensure!(data == (IMAGE_BYTES / 4 * 3) as u64, "{data} bytes of data in:\n{map}");
    Ok(())
}

fn nbdcopy_between(served: &Served, uri: &str, other: &str) -> Result<()> {
    client("nbdcopy", &["--flush", uri, other])?;
    let back = served.file("back.raw");
    client("nbdcopy", &[other, path(&back)])?;
    same(&served.file("image.raw"), &back, IMAGE_BYTES)
}

/// Uses every command and flag that libnbd knows.
fn nbdsh(uri: &str) -> Result<()> {
    const SCRIPT: &str = include_str!("../../../crates/serve/tests/clients/every-command.py");
    // Behind the image.
    let script = format!("base, large = 56 << 20, 4 << 20\n{SCRIPT}");
    client(python(), &["-m", "nbd", "--base-allocation", "-u", uri, "-c", &script]).map(|_| ())
}

/// The client starts the server, with a socket as service managers hand them over, and ends it.
fn socket_activation(served: &Served) -> Result<()> {
    let script = format!(
        r#"
h = nbd.NBD()
h.set_export_name("disk")
h.connect_systemd_socket_activation(["{}", "serve", "--control", "{}", "{}"])
h.pwrite(b"s" * 4096, 0)
h.flush()
assert h.pread(4096, 0) == b"s" * 4096
h.shutdown()
"#,
        path(served.onefold.binary()),
        path(&crate::product::runtime_directory()),
        path(&served.store)
    );
    client(python(), &["-m", "nbd", "-n", "-c", &script]).map(|_| ())
}

/// Debian's own Python has the module; another in the search path may not.
pub(super) fn python() -> &'static str {
    if machine::find("/usr/bin/python3").is_some() { "/usr/bin/python3" } else { "python3" }
}

fn qemu_img(served: &Served, uri: &str) -> Result<()> {
    let (image, copy) = (served.file("image.raw"), served.file("copy.qcow2"));
    client(
        "qemu-img",
        &["convert", "-n", "-m", "8", "-W", "-f", "raw", "-O", "raw", path(&image), uri],
    )?;
    client("qemu-img", &["compare", "-f", "raw", "-F", "raw", path(&image), uri])?;
    client("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", uri, path(&copy)])?;
    client("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", uri, path(&copy)])?;
    let map: serde_json::Value =
        serde_json::from_str(&client("qemu-img", &["map", "-f", "raw", "--output=json", uri])?)?;
    let zero: u64 = map
        .as_array()
        .into_iter()
        .flatten()
        .filter(|part| part["zero"] == true)
        .filter_map(|part| part["length"].as_u64())
        .sum();
    ensure!(zero == (64 << 20) - (IMAGE_BYTES / 4 * 3) as u64, "{zero} bytes of zeroes in {map}");
    Ok(())
}

/// Copies images in qcow2 into a volume, as hypervisors hand them out: as they are, compressed, and a
/// small one on top of another.
fn qemu_img_from_qcow2(served: &Served, uri: &str) -> Result<()> {
    let raw = served.file("image.raw");
    let (plain, compressed, layered) =
        (served.file("plain.qcow2"), served.file("compressed.qcow2"), served.file("layered.qcow2"));
    let (raw, plain) = (path(&raw), path(&plain));
    let (compressed, layered) = (path(&compressed), path(&layered));
    client("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", raw, plain])?;
    client("qemu-img", &["convert", "-c", "-f", "raw", "-O", "qcow2", raw, compressed])?;
    client("qemu-img", &["create", "-f", "qcow2", "-b", plain, "-F", "qcow2", layered])?;
    let changes = ["-c", "write -P 7 1M 3M", "-c", "write -z 40M 1M", "-c", "flush"];
    client("qemu-io", &[&["-f", "qcow2"][..], &changes, &[layered]].concat())?;
    for image in [plain, compressed, layered] {
        client("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", image, uri])?;
        client("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", image, uri])?;
    }
    client("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", raw, uri])?;
    // An image that differs is seen to differ.
    let differs = client("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", layered, uri]);
    let differs = differs.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(differs.contains("Content mismatch"), "qemu-img sees no difference: {differs}");
    Ok(())
}

fn qemu_img_bench(uri: &str) -> Result<()> {
    client(
        "qemu-img",
        &[
            "bench",
            "-f",
            "raw",
            "-t",
            "none",
            "-w",
            "-c",
            "4000",
            "-d",
            "32",
            "-s",
            "4096",
            "--flush-interval=32",
            uri,
        ],
    )?;
    client(
        "qemu-img",
        &["bench", "-f", "raw", "-t", "none", "-c", "4000", "-d", "32", "-s", "4096", uri],
    )
    .map(|_| ())
}

fn qemu_io(uri: &str) -> Result<()> {
    let mut arguments = vec!["-f", "raw", "-t", "none", "--discard=unmap"];
    include_str!("../../../crates/serve/tests/clients/qemu-io.txt")
        .lines()
        .for_each(|command| arguments.extend(["-c", command]));
    arguments.push(uri);
    let output = client("qemu-io", &arguments)?;
    ensure!(!output.contains("failed") && !output.contains("verification"), "{output}");
    Ok(())
}

/// One fio run in the scratch directory, where it leaves its state.
fn fio_run(served: &Served, uri: &str, arguments: &[&str]) -> Result<()> {
    let mut command = with("fio", arguments);
    command.args([
        "--name=check",
        "--ioengine=nbd",
        "--output-format=terse",
        &format!("--uri={uri}"),
    ]);
    command.current_dir(served.scratch.path());
    run_program(command, LIMIT).map(|_| ())
}

fn fio(served: &Served, uri: &str) -> Result<()> {
    let verify =
        ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--size=64m", "--io_size=16m"];
    for job in [
        ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--fsync=16"],
        ["--rw=randwrite", "--bs=512-64k", "--iodepth=16", "--bs_unaligned=1"],
        ["--rw=write", "--bs=128k", "--iodepth=32", "--fsync=8"],
        ["--rw=randrw", "--bs=4k", "--iodepth=1", "--fsync=1"],
        // Half of the blocks are duplicates, four in five compress.
        ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--dedupe_percentage=50"],
    ] {
        fio_run(served, uri, &[&verify[..], &job].concat())?;
    }
    Ok(())
}

fn fio_parallel(served: &Served, uri: &str) -> Result<()> {
    let arguments = [
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=4",
        "--numjobs=4",
        "--size=16m",
        "--offset_increment=16m",
        "--fsync=8",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--group_reporting",
    ];
    fio_run(served, uri, &arguments)
}
