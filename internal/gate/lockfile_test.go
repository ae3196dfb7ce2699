package gate

import (
	"strings"
	"testing"
)

// Packages are read from a lockfile as npm, cargo, uv, pip and go read it, however it is
// written.
func TestT2LockfilesAsRead(t *testing.T) {
	const all = `"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}]`
	db := laid(t, map[string]string{
		"left.json": `{"id":"L","affected":[{"package":{"ecosystem":"npm","name":"left"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"1.2.0"}]}]}]}`,
		"npm.json":  `{"id":"N","affected":[{"package":{"ecosystem":"npm","name":"evil"},` + all + `}]}`,
		"rust.json": `{"id":"R","affected":[{"package":{"ecosystem":"crates.io","name":"evil"},` + all + `}]}`,
		"pypi.json": `{"id":"P","affected":[{"package":{"ecosystem":"PyPI","name":"evil-py"},"versions":["3.3"]}]}`,
	})
	npm := func(entries string) map[string]string {
		return map[string]string{"package-lock.json": `{"lockfileVersion":3,"packages":{"":{"name":"x"},` + entries + `}}`}
	}
	at := func(resolved string) map[string]string {
		return npm(`"node_modules/left":{"version":"1.2.0","resolved":"` + resolved + `","integrity":"sha512-a"}`)
	}
	scoped := func(resolved string) map[string]string {
		return npm(`"node_modules/@a/left":{"version":"1.2.0","resolved":"` + resolved + `"}`)
	}
	cargo := func(text string) map[string]string { return map[string]string{"Cargo.lock": text} }
	pip := func(text string) map[string]string { return map[string]string{"requirements.txt": text} }
	const (
		left  = "https://registry.npmjs.org/left/-/left-1.2.0.tgz"
		evil  = "https://registry.npmjs.org/evil/-/evil-6.6.6.tgz"
		crate = "version = \"1.0.0\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n"
	)
	none := map[string]string{}
	for _, x := range []struct {
		what         string
		base, change map[string]string
		keys         string
		want         Outcome
	}{
		{"npm", none, at(left), "", Passed},
		{"npm, keys that differ in case", none, npm(`"node_modules/left":{"version":"1.2.0","resolved":"` + evil + `","Resolved":"` + left + `"}`), "", Failed},
		{"npm, versions that differ in case", none, npm(`"node_modules/left":{"version":"1.0.9","Version":"1.2.0"}`), "", Failed},
		{"npm, other packages", none, map[string]string{"package-lock.json": `{"lockfileVersion":3,"packages":{"node_modules/evil":{"version":"6.6.6"}},"Packages":{}}`}, "", Failed},
		{"npm, a key twice", none, npm(`"node_modules/left":{"version":"1.0.9","version":"1.2.0"}`), "", Unavailable},
		{"npm, a package twice", none, npm(`"node_modules/left":{"version":"1.0.9"},"node_modules/left":{"version":"1.2.0"}`), "", Unavailable},
		{"npm, packages in old words", none, map[string]string{"package-lock.json": `{"lockfileVersion":3,"dependencies":{"evil":{"version":"6.6.6"}}}`}, "", Unavailable},
		{"npm, packages that are none", none, map[string]string{"package-lock.json": `{"lockfileVersion":3,"packages":null,"dependencies":{"evil":{"version":"6.6.6"}}}`}, "", Unavailable},
		{"npm, a way around", none, npm(`"node_modules/left/../evil":{"version":"1.2.0"}`), "", Unavailable},
		{"npm, below another name", none, npm(`"node_modules/left/evil":{"version":"6.6.6"}`), "", Failed},

		{"npm, from another package", none, at(evil), "", Failed},
		{"npm, from another version", none, at("https://registry.npmjs.org/left/-/left-1.0.9.tgz"), "", Failed},
		{"npm, from another scope", none, scoped("https://registry.npmjs.org/@b/left/-/left-1.2.0.tgz"), "", Failed},
		{"npm, behind a fragment", none, at(evil + "#/left/-/left-1.2.0.tgz"), "", Failed},
		{"npm, behind a query", none, at(evil + "?/left/-/left-1.2.0.tgz"), "", Failed},
		{"npm, behind another", none, at(evil + "/left/-/left-1.2.0.tgz"), "", Failed},
		{"npm, an archive", none, at("https://example.org/left-1.2.0.tgz"), "", Failed},
		{"npm, in other letters", none, at(strings.ToUpper(evil)), "", Failed},
		{"npm, the base's own", at(evil), at(evil), "", Passed},
		{"npm, the base's own, all count", at(evil), at(evil), ", fail: all", Failed},
		{"npm, another in the place of the base's own", at(evil), npm(`"node_modules/left":{"version":"1.2.0","resolved":"` + evil + `","integrity":"sha512-b"}`), "", Failed},
		{"npm, accepted", none, at(evil), ", accept: ['" + evil + "']", Passed},
		{"npm, a version that is an alias", none, npm(`"node_modules/left":{"version":"npm:evil@6.6.6"}`), "", Failed},
		{"npm, a version that is a range", none, npm(`"node_modules/right":{"version":"1"}`), "", Failed},
		{"npm, a version that leads on", none, npm(`"node_modules/left":{"version":"1.2.0/../../../evil/-/evil-6.6.6","resolved":"https://registry.npmjs.org/left/-/left-1.2.0/../../../evil/-/evil-6.6.6.tgz"}`), "", Failed},
		{"npm, a name that leads on", none, npm(`"node_modules/left":{"name":"a/../evil","version":"1.2.0"}`), "", Failed},
		{"npm, an alias", none, npm(`"node_modules/l":{"name":"left","version":"1.2.0","resolved":"` + left + `"}`), "", Passed},
		{"npm, an alias of what is bad", none, npm(`"node_modules/left":{"name":"evil","version":"6.6.6","resolved":"` + evil + `"}`), "", Failed},
		{"npm, an alias of another", none, npm(`"node_modules/evil":{"name":"left","version":"1.2.0","resolved":"` + evil + `"}`), "", Failed},
		{"npm, a scope", none, scoped("https://registry.npmjs.org/@a/left/-/left-1.2.0.tgz"), "", Passed},
		{"npm, a scope in one word", none, scoped("http://localhost:4873/@a%2fleft/-/left-1.2.0.tgz"), "", Passed},
		{"npm, a scope twice", none, scoped("https://gitlab.example.org/api/v4/projects/1/packages/npm/@a/left/-/@a/left-1.2.0.tgz"), "", Passed},
		{"npm, GitHub's registry", none, scoped("https://npm.pkg.github.com/download/@a/left/1.2.0/0123456789abcdef"), "", Passed},
		{"npm, GitHub's registry, another", none, scoped("https://npm.pkg.github.com/download/@a/evil/1.2.0/0123456789abcdef"), "", Failed},
		{"npm, by git", none, at("git+ssh://git@github.com/a/left.git#0123456789abcdef"), "", Passed},
		{"npm, a file", none, at("file:left.tgz"), "", Passed},
		{"npm, a link", none, npm(`"node_modules/left":{"resolved":"left","link":true},"left":{"version":"1.0.0"}`), "", Passed},
		{"npm, bundled", none, npm(`"node_modules/a/node_modules/left":{"version":"1.3.0-rc.1+b","inBundle":true}`), "", Passed},

		{"cargo", none, cargo("[[package]]\nname = \"fine\"\n" + crate), "", Passed},
		{"cargo, keys that differ in case", none, cargo("[[package]]\nname = \"evil\"\nName = \"fine\"\n" + crate), "", Failed},
		{"cargo, sources that differ in case", none, cargo("[[package]]\nname = \"evil\"\n" + crate + "Source = \"\"\n"), "", Failed},
		{"cargo, a root", none, cargo("[root]\nname = \"evil\"\n" + crate), "", Failed},
		{"cargo, a name that is none", none, cargo("[[package]]\nname = 1\n" + crate), "", Unavailable},
		{"cargo, packages that are none", none, cargo("package = \"evil\"\n"), "", Unavailable},
		{"uv", none, map[string]string{"uv.lock": "[[package]]\nname = \"evil-py\"\nversion = \"3.4\"\n"}, "", Passed},
		{"uv, in old words", none, map[string]string{"uv.lock": "[[distribution]]\nname = \"evil-py\"\nversion = \"3.3\"\n"}, "", Failed},
		{"poetry, another spelling", none, map[string]string{"poetry.lock": "[[package]]\nname = \"Evil.Py\"\nversion = \"3.3\"\n"}, "", Failed},

		{"pip", none, pip("evil-py==3.4\n"), "", Passed},
		{"pip, another spelling", none, pip("Evil._.PY==3.3\n"), "", Failed},
		{"pip, no version", none, pip("evil-py==0!v3.03.0\n"), "", Unavailable},
		{"pip, zeros", none, pip("evil-py==3.03.0.0\n"), "", Failed},
		{"pip, a letter and an epoch", none, pip("evil-py==V0!3.3\n"), "", Failed},
		{"pip, made from it", none, pip("evil-py==3.3+cu118\n"), "", Failed},
		{"pip, made from another", none, pip("evil-py==3.4+cu118\n"), "", Passed},

		{"go", none, map[string]string{"go.mod": "module x\n\ngo 1.17\n\nrequire example.org/m v1.0.0\n"}, "", Passed},
		{"go, of which half is listed", none, map[string]string{"go.mod": "module x\n\ngo 1.16\n\nrequire example.org/m v1.0.0\n"}, "", Unavailable},
		{"go, which says nothing", none, map[string]string{"go.mod": "module x\n\nrequire example.org/m v1.0.0\n"}, "", Unavailable},
		{"go, which needs nothing", none, map[string]string{"go.mod": "module x\n\ngo 1.16\n"}, "", Passed},
	} {
		g := newGate(t, "version: 1\nsignals:\n  - {name: v, kind: vulnerabilities"+x.keys+"}\n", tree(t, x.base), tree(t, x.change), nil)
		g.Database = db
		if v := verdict(t, g); v.Outcome != x.want {
			t.Errorf("%s: %s, want %s: %s %+v", x.what, v.Outcome, x.want, v.Signals[0].Why, v.Signals[0].Findings)
		}
	}
	for what, x := range map[string]struct {
		packages string
		files    map[string]string
		want     Outcome
	}{
		"the lockfile's word":    {"", npm(`"node_modules/left":{"version":"1.2.0","resolved":"` + left + `","license":"MIT"}`), Passed},
		"another package's word": {"", npm(`"node_modules/left":{"version":"1.2.0","resolved":"` + evil + `","license":"MIT"}`), Failed},
		"the catalog's word":     {", packages: {left: MIT}", npm(`"node_modules/left":{"version":"1.2.0","resolved":"` + evil + `"}`), Passed},
		"another spelling":       {", packages: {Evil_Py: MIT}", pip("evil.py==1\n"), Passed},
		"npm has spellings":      {", packages: {le_ft: MIT}", npm(`"node_modules/le-ft":{"version":"1.2.0"}`), Failed},
	} {
		change := tree(t, x.files)
		g := newGate(t, "version: 1\nsignals:\n  - {name: l, kind: licences, allow: [MIT]"+x.packages+"}\n", change, change, nil)
		if v := verdict(t, g); v.Outcome != x.want {
			t.Errorf("licences, %s: %s, want %s: %+v", what, v.Outcome, x.want, v.Signals[0])
		}
	}
}

// A file that pip may read differently is refused, with the line.
func TestRequirements(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"a==1.0\n":                      "a 1.0",
		"a==1.0\r\nb == 2\r\n":          "a 1.0, b 2",
		"# für Tests, Тесты\na==1\n":    "a 1",
		"a==1 # für Tests\n\t\n":        "a 1",
		"# -*- coding: utf-8 -*-\na==1": "a 1",
		"a==1\n\n# coding: utf-7\n":     "a 1",
		"a==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:0a\n    # via b\nb==2 ; python_version > '3'\n": "a 1.0, b 2",
		"a[x, y]==1;python_version>'3' \\\n  --hash=sha256:00":                                                 "a 1",
		"A_b.c==1\n": "a-b-c 1",

		"a>=1\n":                            "line 1",
		"a==1\n# x\revil==6\n":              "line 2 has U+000D",
		"# x\x0bevil==6\n":                  "line 1 has U+000B",
		"# x\x0cevil==6\n":                  "line 1 has U+000C",
		"# x\x1cevil==6\n":                  "line 1 has U+001C",
		"# x\x1eevil==6\n":                  "line 1 has U+001E",
		"# x\u0085evil==6\n":                "line 1 has U+0085",
		"# x\u2028evil==6\n":                "line 1 has U+2028",
		"# x\u2029evil==6\n":                "line 1 has U+2029",
		"a==1\r\r\n":                        "line 1 has U+000D",
		"\ufeffa==1\n":                      "line 1 has U+FEFF",
		"a==1\n# \xe4\n":                    "line 2 is not UTF-8",
		"\xff\xfea\x00":                     "line 1 is not UTF-8",
		"a\u00a0==1\n":                      "line 1 has U+00A0",
		"a==1 ; x == 'ü'\n":                 "line 1 pins",
		"# coding: utf-7\n# +AAo-evil==6\n": "line 1 names a coding",
		"\n#vim: fileencoding=utf-16\n":     "line 2 names a coding",
		"--hash=sha256:00 -r evil.txt\n":    "line 1 pins",
		"--hash=sha256:00 -e ./evil\n":      "line 1 pins",
		"-r evil.txt\n":                     "line 1 pins",
		"a==1\\\n--hash=sha256:00\n":        "line 1 pins",
		"a==1 \\\nb==2\n":                   "line 2 belongs",
		"a==1 ; x \\ y\n":                   "line 1 pins",
		".a==1\n":                           "line 1 pins",
		"a[/../b]==1\n":                     "line 1 pins",
		"a==1.zip\n":                        "line 1 pins 1.zip",
		"a==1+x.zip\n":                      "line 1 pins 1+x.zip",
		"a==1+x.tar.gz\n":                   "line 1 pins 1+x.tar.gz",
		"a==1.*\n":                          "line 1 pins",
		"a===1\n":                           "line 1 pins",
	} {
		list, err := Requirements([]byte(text))
		var got []string
		for _, p := range list {
			got = append(got, p.Name+" "+p.Version)
		}
		s := strings.Join(got, ", ")
		if err != nil {
			s = err.Error()
		}
		if err == nil && s != want || err != nil && (want == "" || !strings.HasPrefix(s, want)) {
			t.Errorf("%q: %q, want %q", text, s, want)
		}
	}
}
