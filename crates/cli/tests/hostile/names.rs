//! Names that others chose: of sets, of files, and in files of patterns. Nobody takes them for
//! something else.

use std::fs;

use crate::support::Desk;

/// An archive, and directories `good` and `evil` with a file each.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.ok("create archive a");
    for name in ["good", "evil"] {
        fs::create_dir(desk.path(name)).unwrap();
        fs::write(desk.path(name).join("file"), name).unwrap();
    }
    desk
}

#[test]
fn rule_21_a_set_that_is_called_like_a_snapshot_of_another_one_is_not_taken_for_it() {
    let desk = desk();
    let backup = |directory: &str, set: &str| {
        desk.ok(&format!("backup a {directory} --set {set} --host h"));
    };
    backup("good", "web1");
    backup("good", "web1");
    let listed: serde_json::Value = serde_json::from_str(&desk.ok("snapshots a --json")).unwrap();
    let id = listed[0]["id"].as_str().unwrap();
    let shown = &id[..8];
    let names = [shown, "web1~1", "web1@2999-01-01", "h:web1", "h:web1~0"];
    let has = |name: &str, directory: &str| {
        let all = desk.ok(&format!("ls a {name}"));
        assert!(all.contains(&format!("{directory}/file")), "{name}: {all}");
    };
    names.iter().for_each(|name| has(name, "good"));
    for set in names.iter().chain([&id, &&id[..6]]) {
        backup("evil", set);
    }
    for name in names {
        for verb in [format!("ls a {name}"), format!("restore a {name} -C to")] {
            desk.fails(&verb, 1, &["may be snapshot", "'web1'", "say all digits"]);
        }
    }
    has(id, "good");
    has("web1", "good");
    // Fewer digits than are shown may be what somebody calls a set.
    has(&id[..6], "evil");
    has(&format!("h:{shown}"), "evil");
    has(&id[..7], "good");
}

#[test]
fn rule_07_mistakes_in_a_file_of_patterns_are_one_line_of_the_log() {
    let desk = desk();
    let rules = desk.path("evil/.onefoldignore");
    fs::write(&rules, format!("{}file\n", "{\n".repeat(30_000))).unwrap();
    let said = desk.run("backup a evil --set s");
    assert!(said.status.success(), "{said:?}");
    assert_eq!(said.err.lines().count(), 1, "{} lines", said.err.lines().count());
    assert!(said.err.contains("30,000 lines can't be used"), "{}", said.err);
    assert!(!desk.ok("ls a s").contains("evil/file"), "the others count");
    // The journal would make an entry of the rest of a long line.
    fs::write(&rules, format!("{{{}<2>onefold: all is well\n", "x".repeat(50_000))).unwrap();
    let said = desk.run("backup a evil --set s");
    assert!(said.err.lines().count() == 1 && said.err.len() < 10_000, "{}", said.err.len());
}

#[test]
fn rule_09_lines_of_json_have_the_names_that_files_have() {
    let desk = desk();
    desk.ok("backup a evil --set s");
    let name = "a\u{9b}2J\u{7f}\u{85}";
    fs::write(desk.path("evil").join(name), "x").unwrap();
    desk.ok("backup a evil --set s");
    for verb in ["ls a s --json", "find a a*2J* --json", "diff a s~1 s --json"] {
        let out = desk.ok(verb);
        assert!(out.chars().all(|c| !c.is_control() || c == '\n'), "{verb}: {out:?}");
        let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut paths =
            lines.filter_map(|line: serde_json::Value| line["path"].as_str().map(str::to_owned));
        assert!(paths.any(|path| path.ends_with(name)), "{verb}: {out}");
    }
}

#[test]
fn rule_07_a_name_with_a_line_break_in_a_list_of_paths_is_one_path() {
    let desk = desk();
    let trap = format!("good/x\n{}", desk.path("evil").display());
    // The name has directories in it, as the path that stands behind the break.
    fs::create_dir_all(desk.path(&trap)).unwrap();
    fs::write(desk.path("list"), format!("good/file\0{trap}\0# no remark\0")).unwrap();
    fs::write(desk.path("# no remark"), "x").unwrap();
    desk.ok("backup a --files-from0 list --set s");
    let all = desk.ok("ls a s");
    let evil = desk.path("evil/file").display().to_string();
    assert!(!all.lines().any(|line| line == evil), "{all}");
    assert!(all.contains("good/file\n") && all.contains("/# no remark\n"), "{all}");
}
