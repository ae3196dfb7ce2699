package gate

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// state is what a reporter says of a test. The zero state is none.
type state string

const (
	testPassed  state = "passed"
	testFailed  state = "failed"
	testSkipped state = "skipped"
)

// inventory is what a reporter says of all tests, by id, and what it printed of those
// that failed. It is a claim.
type inventory struct {
	tests  map[string]state
	output map[string]string
	said   map[string][]byte // output, while it is read
	// files and packages are where passed tests are from, as far as the format says.
	files    map[string]bool
	packages map[string]bool
}

func newInventory() *inventory {
	return &inventory{map[string]state{}, map[string]string{}, map[string][]byte{}, map[string]bool{}, map[string]bool{}}
}

// Bounds of what a reporter may say.
const (
	maxReport = 64 << 20 // bytes of a file
	maxTests  = 200_000
	maxTestID = 1000
)

// printed takes what a test printed: the beginning, which says what it is about, and the
// end, which says what failed it, are kept. What falls out between the two is cut out by
// ends, too, so that no line is made of two halves, and far from where a private key that
// it halves is shown.
func (v *inventory) printed(id, s string) {
	o := append(v.said[id], s...)
	if len(o) > 4*maxMasked {
		o = append(o[:maxMasked], o[len(o)-2*maxMasked:]...)
	}
	v.said[id] = o
}

// all ends what was printed.
func (v *inventory) all() *inventory {
	for id, o := range v.said {
		v.output[id] = string(o)
	}
	v.said = nil
	return v
}

// set takes one result. A test that is there twice, as with repeats and parameters of
// one name, has the worst of its states.
func (v *inventory) set(id string, s state) error {
	if len(id) > maxTestID || id == "" {
		return fmt.Errorf("a test's id has %d bytes", len(id))
	}
	if len(v.tests) >= maxTests {
		return fmt.Errorf("more than %d tests", maxTests)
	}
	rank := map[state]int{"": 0, testPassed: 1, testSkipped: 2, testFailed: 3}
	if rank[s] > rank[v.tests[id]] {
		v.tests[id] = s
	}
	return nil
}

// parsers are the formats that tests are reported in.
var parsers = map[string]func([]byte) (*inventory, error){"go": parseGo, "junit": parseJUnit, "pytest": parseJUnit, "jest": parseJest, "vitest": parseJest}

// parseGo reads what go test -json prints. Lines that are no events are a program's
// own, such as the compiler's.
func parseGo(b []byte) (*inventory, error) {
	v := newInventory()
	began, failing := map[string]bool{}, map[string]bool{}
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		line := bytes.TrimSpace(s.Bytes())
		if len(line) == 0 || line[0] != '{' {
			continue
		}
		var e struct{ Action, Package, Test, Output, ImportPath string }
		if err := json.Unmarshal(line, &e); err != nil {
			continue
		}
		id := e.Package
		if e.Test != "" {
			id += "." + e.Test
			if e.Action == "fail" && e.Package != "" {
				failing[e.Package] = true
			}
		}
		var err error
		switch e.Action {
		case "run":
			began[id] = true
		case "output":
			if !strings.HasPrefix(e.Output, "=== ") { // the runner's own: RUN, PAUSE, CONT, NAME
				v.printed(id, e.Output)
			}
		case "build-output":
			v.printed(e.ImportPath, e.Output)
		case "pass", "skip":
			if e.Test == "" {
				continue
			}
			st := testPassed
			if e.Action == "skip" {
				st = testSkipped
			} else {
				v.packages[e.Package] = true
			}
			err = v.set(id, st)
			delete(began, id)
		case "fail", "build-fail":
			err = v.set(cmp.Or(id, e.ImportPath), testFailed)
			delete(began, id)
		}
		if err != nil {
			return nil, err
		}
	}
	for id := range began {
		if err := v.set(id, testFailed); err != nil { // it never ended
			return nil, err
		}
	}
	// A package fails with each of its tests: what it says of itself is that.
	for pkg := range failing {
		delete(v.tests, pkg)
	}
	return v.all(), s.Err()
}

// parseJUnit reads JUnit's XML, as pytest, Maven, Gradle, node and others write it.
func parseJUnit(b []byte) (*inventory, error) {
	v := newInventory()
	d := xml.NewDecoder(bytes.NewReader(b))
	d.Strict = true
	var suites []string
	var id string
	var st state
	depth, top, in, failure := 0, false, false, 0 // failure: how deep the one is that is being read
	for {
		t, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		switch x := t.(type) {
		case xml.Directive:
			return nil, errors.New("the XML declares types, which results never do")
		case xml.StartElement:
			if depth++; depth > 100 {
				return nil, errors.New("the XML is nested deeper than results are")
			}
			attr := func(name string) string {
				for _, a := range x.Attr {
					if a.Name.Local == name {
						return a.Value
					}
				}
				return ""
			}
			switch x.Name.Local {
			case "testsuites":
				top = true
			case "testsuite":
				top = true
				suites = append(suites, attr("name"))
			case "testcase":
				if in {
					return nil, errors.New("a test is in another test, so it is not known whose results are whose")
				}
				in = true
				id = strings.Trim(cmp.Or(attr("classname"), strings.Join(suites, "/"))+"::"+attr("name"), ":")
				if f := attr("file"); f != "" {
					f = strings.TrimPrefix(f, Workspace+"/")
					v.files[f] = true
				}
				st = testPassed
				if s := attr("status"); s == "skipped" || s == "disabled" || s == "notrun" {
					st = testSkipped
				}
			case "failure", "error":
				if st = testFailed; in {
					failure = depth
					v.printed(id, strings.TrimRight(attr("message"), "\n")+"\n")
				}
			case "skipped":
				if st != testFailed {
					st = testSkipped
				}
			}
		case xml.CharData:
			if failure > 0 {
				v.printed(id, string(x))
			}
		case xml.EndElement:
			if depth--; depth < failure {
				failure = 0
			}
			switch x.Name.Local {
			case "testsuite":
				suites = suites[:len(suites)-1]
			case "testcase":
				in = false
				if err := v.set(id, st); err != nil {
					return nil, err
				}
			}
		}
	}
	if !top {
		return nil, errors.New("these are no results in JUnit's form")
	}
	return v.all(), nil
}

// parseJest reads what jest --json and vitest --reporter=json print.
func parseJest(b []byte) (*inventory, error) {
	v := newInventory()
	var r struct {
		TestResults []struct {
			Name, Status, Message string
			AssertionResults      []struct {
				FullName, Status string
				FailureMessages  []string
			}
		}
	}
	if i := bytes.IndexByte(b, '{'); i > 0 {
		b = b[i:] // npm prints a line of its own before
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	for _, f := range r.TestResults {
		name := strings.TrimPrefix(f.Name, Workspace+"/")
		v.files[name] = true
		if f.Status == "failed" && len(f.AssertionResults) == 0 {
			v.printed(name, f.Message)
			if err := v.set(name, testFailed); err != nil {
				return nil, err
			}
		}
		for _, a := range f.AssertionResults {
			id, st := name+"::"+a.FullName, testFailed
			switch a.Status {
			case "passed":
				st = testPassed
			case "pending", "skipped", "todo", "disabled":
				st = testSkipped
			}
			if st == testFailed {
				v.printed(id, strings.Join(a.FailureMessages, "\n"))
			}
			if err := v.set(id, st); err != nil {
				return nil, err
			}
		}
	}
	return v.all(), nil
}

// goBinary is what go test calls the binary of a package.
func goBinary(pkg string) string {
	base := path.Base(pkg)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" && base != pkg {
		base = path.Base(path.Dir(pkg))
	}
	return base + ".test"
}
