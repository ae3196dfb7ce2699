package agenttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
)

// A debianProgram is one of the machine's, which needs no network for this.
type debianProgram struct {
	name    string
	need    string // on PATH, a path, or "npm:NAME" from install.sh
	how     string // Debian's packages
	version string // prints it
	script  string
	want    string
	code    int // the exit code of the script
}

const (
	aPage = `cat >page.html <<'X'
<!DOCTYPE html><title>page</title><p id=p>written</p><script>document.getElementById("p").textContent = ["drawn", "by", "a", "script"].join(" ")</script>
X
`
	// drive opens the page by a library that starts Debian's Chromium.
	drive = aPage + `cat >drive.js <<'X'
const [dir, name] = process.argv.slice(2), lib = require(dir + "/node_modules/" + name);
(async () => {
  const b = await (lib.chromium || lib).launch({executablePath: "/usr/bin/chromium", chromiumSandbox: true});
  const p = await b.newPage();
  await p.goto("file://" + process.cwd() + "/page.html");
  console.log(await p.evaluate(() => document.getElementById("p").textContent));
  const shot = await p.screenshot({path: "shot.png"});
  console.log("a picture of " + (shot.length > 1000 ? "some" : "no") + " bytes");
  await b.close();
})().catch(e => { console.error(e); process.exit(1) });
X
`
	// hello sends a language server its first request, and prints the name of what it answers.
	hello = `cat >hello.py <<'X'
import json, subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
b = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"processId": None, "rootUri": None, "capabilities": {}}}).encode()
p.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(b), b)); p.stdin.flush()
while True:
    size = 0
    while (line := p.stdout.readline().strip()): size = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else size
    m = json.loads(p.stdout.read(size))
    if m.get("id") == 1: break
print("completion" if "completionProvider" in m["result"]["capabilities"] else m)
p.kill()
X
python3 hello.py `
	aWheel = `python3 - <<'X'
import zipfile
with zipfile.ZipFile("tiny_thing-1.0-py3-none-any.whl", "w") as z:
    i = "tiny_thing-1.0.dist-info/"
    z.writestr("tiny_thing.py", "print('tiny and from a wheel')\n")
    z.writestr(i + "METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
    z.writestr(i + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr(i + "RECORD", "")
X
`
	aClass = `mkdir -p src/main/java; cat >src/main/java/Main.java <<'X'
public class Main { public static void main(String[] a) { System.out.println("hello from " + Main.class.getName()); } }
X
`
)

// programs lists what people start on their own machines, each with the least that
// it is good for.
var programs = []debianProgram{
	{name: "Chromium", need: "chromium", how: "chromium", version: "chromium --version",
		script: aPage + "chromium --headless --dump-dom file://$PWD/page.html 2>err || { cat err; exit 1; }", want: "drawn by a script"},
	{name: "Playwright", need: "npm:playwright-core", how: "chromium nodejs npm", script: drive + `node drive.js "$NPM" playwright-core`, want: "drawn by a script\na picture of some bytes"},
	{name: "Puppeteer", need: "npm:puppeteer-core", how: "chromium nodejs npm", script: drive + `node drive.js "$NPM" puppeteer-core`, want: "drawn by a script\na picture of some bytes"},
	{name: "Java", need: "javac", how: "default-jdk-headless", version: "javac -version",
		script: aClass + "javac -d out src/main/java/Main.java && jar --create --file main.jar --main-class Main -C out . && java -jar main.jar", want: "hello from Main"},
	{name: "Maven", need: "mvn", how: "maven libmaven-resources-plugin-java libmaven-compiler-plugin-java libsurefire-java libmaven-jar-plugin-java", version: "mvn -B -v | head -n 1",
		script: aClass + `cp -rs /usr/share/maven-repo repo
v() { ls /usr/share/maven-repo/org/apache/maven/plugins/maven-$1-plugin | grep -v '[a-z]' | head -n 1; }
p() { echo "<plugin><artifactId>maven-$1-plugin</artifactId><version>$(v $1)</version></plugin>"; }
echo "<project><modelVersion>4.0.0</modelVersion><groupId>g</groupId><artifactId>a</artifactId><version>1</version><properties><maven.compiler.source>11</maven.compiler.source><maven.compiler.target>11</maven.compiler.target><project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties><build><plugins>$(p resources)$(p compiler)$(p surefire)$(p jar)</plugins></build></project>" >pom.xml
mvn -o -q -B -Dmaven.repo.local=$PWD/repo package && java -cp target/a-1.jar Main`, want: "hello from Main"},
	{name: "Gradle", need: "gradle", how: "gradle", version: "gradle --version | grep ^Gradle",
		script: aClass + "echo \"apply plugin: 'java'\" >build.gradle; gradle --offline --no-daemon --quiet jar && java -cp build/libs/*.jar Main", want: "hello from Main"},
	{name: "Python", need: "python3", how: "python3-venv", version: "python3 --version",
		script: aWheel + "python3 -m venv v && v/bin/pip install --quiet --no-index ./*.whl && v/bin/python -c 'import tiny_thing'", want: "tiny and from a wheel"},
	{name: "cargo", need: "/usr/bin/cargo", how: "cargo librust-itoa-dev", version: "/usr/bin/cargo --version",
		script: `mkdir -p src .cargo; printf '[package]\nname = "a"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\nitoa = "1"\n' >Cargo.toml
printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n' >.cargo/config.toml
echo 'fn main() { println!("{} from a crate", itoa::Buffer::new().format(42)); }' >src/main.rs
/usr/bin/cargo run --offline --quiet`, want: "42 from a crate"},
	{name: "Ruby", need: "bundle", how: "ruby ruby-bundler ruby-rack", version: "ruby --version",
		script: `echo 'gem "rack"' >Gemfile; bundle check && bundle exec ruby -e 'require "rack"; puts "rack is #{Rack.release[0]}"'`, want: "rack is "},
	{name: "PHP", need: "composer", how: "php-cli composer php-symfony-console", version: "php --version | head -n 1",
		script: `mkdir -p src; printf %s '{"autoload": {"psr-4": {"A\\": "src/"}}}' >composer.json; echo '<?php namespace A; class B { const C = "loaded"; }' >src/B.php
composer --no-interaction --quiet dump-autoload && php -r 'require "vendor/autoload.php"; require "Symfony/Component/Console/autoload.php"; $o = new Symfony\Component\Console\Output\StreamOutput(STDOUT); $o->writeln(A\B::C . " " . extension_loaded("tokenizer"));'`, want: "loaded 1"},
	{name: "clangd", need: "clangd", how: "clangd", version: "clangd --version | head -n 1", script: hello + "clangd", want: "completion"},
	{name: "pylsp", need: "pylsp", how: "python3-pylsp", version: "pylsp --version", script: hello + "pylsp", want: "completion"},
	{name: "typescript-language-server", need: "npm:typescript-language-server", how: "nodejs npm", script: hello + `node "$NPM/node_modules/.bin/typescript-language-server" --stdio`, want: "completion"},
	{name: "pyright", need: "npm:pyright", how: "nodejs npm", script: hello + `node "$NPM/node_modules/.bin/pyright-langserver" --stdio`, want: "completion"},
	{name: "tmux", need: "tmux", how: "tmux", version: "tmux -V",
		script: "tmux new-session -d 'echo hello from tmux >said; tmux wait-for -S said' && tmux wait-for said; cat said", want: "hello from tmux"},
	{name: "vim", need: "vim", how: "vim", version: "vim --version | head -n 1", script: "echo wrong >f; vim -es -c '%s/wrong/right/' -c x f; cat f", want: "right"},

	// What a bottle has not, its programs say. Firefox 136 and later want a register that the
	// embedded kernel keeps for itself: https://github.com/google/gvisor/issues/11567.
	{name: "Firefox", need: "firefox-esr", how: "firefox-esr", version: "firefox-esr --version",
		script: aPage + "! firefox-esr --headless --screenshot $PWD/shot.png file://$PWD/page.html 2>&1", want: "wasm_rt_syscall_set_segue_base error"},
	{name: "docker", need: "docker", how: "docker.io", version: "docker --version", script: "docker ps 2>&1", want: "Cannot connect to the Docker daemon", code: 1},
	{name: "ssh", need: "ssh", how: "openssh-client", version: "ssh -V 2>&1", script: "ssh -o BatchMode=yes git@host.example.com 2>&1", want: "Could not resolve hostname host.example.com", code: 255},
	{name: "sudo", need: "sudo", how: "sudo", script: "sudo -n true 2>&1", want: `The "no new privileges" flag is set, which prevents sudo from running as root`, code: 1},
	{name: "systemctl", need: "systemctl", how: "systemd", version: "systemctl --version | head -n 1", script: "systemctl start anything 2>&1", want: "System has not been booted with systemd as init system", code: 1},
}

// TestPrograms: the machine's programs work in a bottle, and what a bottle has not is
// refused in words.
func TestPrograms(t *testing.T) {
	if !testenv.Exhaustive() {
		t.Log("the machine's programs are NOT tried, which takes minutes: CARBOY_TEST_EXHAUSTIVE=1")
		return
	}
	for _, p := range programs {
		t.Run(p.name, p.try)
	}
}

func (p debianProgram) try(t *testing.T) {
	path, npm := p.need, ""
	if name, ok := strings.CutPrefix(p.need, "npm:"); ok {
		if testenv.CI() && os.Getenv(agentsEnv) == "" {
			t.Logf("NOT RUN here: %s: npm's registry was not reached", p.name)
			return
		}
		npm = filepath.Join(os.Getenv(agentsEnv), name)
		path = npm + "/node_modules/" + name
		p.how += ", and internal/agenttest/install.sh DIRECTORY " + name
		p.version = "grep '\"version\"' $NPM/node_modules/" + name + "/package.json"
	} else if !filepath.IsAbs(path) {
		path = testenv.Look(path)
	}
	if _, err := os.Stat(path); err != nil {
		testenv.Missing(t, p.need, "apt-get install "+p.how)
	}
	h := newHost(t)
	o := carboy.RunOptions{Workspace: h.ws, Limits: bottle.Limits{Timeout: 5 * time.Minute}}
	if npm != "" {
		o.Mounts, o.Env = []string{npm + ":" + npm + ":ro"}, []string{"NPM=" + npm}
	}
	var err error
	if h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	run := func(script string) (string, string, int) {
		var out, msg testenv.Buffer
		o := o
		o.Command, o.Stdout, o.Stderr = []string{"/bin/sh", "-c", script}, &out, &msg
		rec, err := h.client.Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), msg.String(), rec.Exit.Code
	}
	began := time.Now()
	out, msg, code := run(p.script)
	took := time.Since(began)
	if code != p.code || !strings.Contains(out, p.want) {
		t.Fatalf("exit code %d, want %d and %q\n%.4000s\n%.4000s", code, p.code, p.want, out, msg)
	}
	version := ""
	if p.version != "" {
		version, _, _ = run(p.version)
	}
	t.Logf("%s works after %.1f s: %s", p.name, took.Seconds(), strings.TrimSpace(version))
}
