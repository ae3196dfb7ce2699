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
	"slices"
	"strings"
)

// state is the reported result of a test. The zero state means that there is none.
type state string

const (
	testPassed  state = "passed"
	testFailed  state = "failed"
	testSkipped state = "skipped"
)

// inventory is a test report: the result of each test by id, and the output of tests that
// failed. It is a claim of the test runner.
type inventory struct {
	tests   map[string]state
	output  map[string]string
	pending map[string][]byte // output so far, while the report is read
	// files and packages tell where passed tests are from, as far as the format does.
	files    map[string]bool
	packages map[string]bool
	fileOf   map[string]string // by id
}

func newInventory() *inventory {
	return &inventory{map[string]state{}, map[string]string{}, map[string][]byte{}, map[string]bool{}, map[string]bool{}, map[string]string{}}
}

// Bounds of a test report.
const (
	maxReport = 64 << 20 // bytes of a file
	maxTests  = 200_000
	maxTestID = 1000
)

// addOutput appends to the output of a test. It keeps the beginning, which says what the
// output is about, and the end, which says what failed. The cut lies in the part that
// headAndTail leaves out, far from what is shown, so that neither a line nor a private
// key is joined from two halves.
func (v *inventory) addOutput(id, s string) {
	o := append(v.pending[id], s...)
	if len(o) > 4*maxMasked {
		o = append(o[:maxMasked], o[len(o)-2*maxMasked:]...)
	}
	v.pending[id] = o
}

// failed returns the ids of failed tests, sorted.
func (v *inventory) failed() (out []string) {
	for id, st := range v.tests {
		if st == testFailed {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// detail returns the output of a test for people.
func (v *inventory) detail(id string) string {
	return headAndTail(strings.Trim(v.output[id], "\n"), maxDetail)
}

// finish completes the output.
func (v *inventory) finish() *inventory {
	for id, o := range v.pending {
		v.output[id] = string(o)
	}
	v.pending = nil
	return v
}

// set records one result. A test that is reported more than once, as with repeats and
// parameters, has the worst of its results.
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

// parsers are the known formats of test reports.
var parsers = map[string]func([]byte) (*inventory, error){"go": parseGo, "junit": parseJUnit, "pytest": parseJUnit, "jest": parseJest, "vitest": parseJest}

// parseGo reads the output of go test -json. It skips other lines, such as the
// compiler's.
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
			if !strings.HasPrefix(e.Output, "=== ") { // lines of the test runner: RUN, PAUSE, CONT, NAME
				v.addOutput(id, e.Output)
			}
		case "build-output":
			v.addOutput(e.ImportPath, e.Output)
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
	// A package fails with each of its tests, so its own failure says nothing more.
	for pkg := range failing {
		delete(v.tests, pkg)
	}
	return v.finish(), s.Err()
}

// parseJUnit reads JUnit's XML, as pytest, Maven, Gradle, node and others write it.
func parseJUnit(b []byte) (*inventory, error) {
	v := newInventory()
	d := xml.NewDecoder(bytes.NewReader(b))
	d.Strict = true
	var suites []string
	var id string
	var st state
	depth, top, in, failure := 0, false, false, 0 // failure: the depth of the element that is being read
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
			return nil, errors.New("the XML has a declaration such as a document type, which no report needs")
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
					return nil, errors.New("a test is in another test, so results cannot be assigned")
				}
				in = true
				id = strings.Trim(cmp.Or(attr("classname"), strings.Join(suites, "/"))+"::"+attr("name"), ":")
				if f := attr("file"); f != "" {
					f = strings.TrimPrefix(f, Workspace+"/")
					v.files[f] = true
					v.fileOf[id] = f
				}
				st = testPassed
				if s := attr("status"); s == "skipped" || s == "disabled" || s == "notrun" {
					st = testSkipped
				}
			case "failure", "error":
				if st = testFailed; in {
					failure = depth
					v.addOutput(id, strings.TrimRight(attr("message"), "\n")+"\n")
				}
			case "skipped":
				if st != testFailed {
					st = testSkipped
				}
			}
		case xml.CharData:
			if failure > 0 {
				v.addOutput(id, string(x))
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
		return nil, errors.New("this is not a JUnit report")
	}
	return v.finish(), nil
}

// parseJest reads the output of jest --json and vitest --reporter=json.
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
		b = b[i:] // npm prints a line before it
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	for _, f := range r.TestResults {
		name := strings.TrimPrefix(f.Name, Workspace+"/")
		v.files[name] = true
		if f.Status == "failed" && len(f.AssertionResults) == 0 {
			v.addOutput(name, f.Message)
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
			v.fileOf[id] = name
			if st == testFailed {
				v.addOutput(id, strings.Join(a.FailureMessages, "\n"))
			}
			if err := v.set(id, st); err != nil {
				return nil, err
			}
		}
	}
	return v.finish(), nil
}

// goBinary returns the name that go test gives the test binary of a package.
func goBinary(pkg string) string {
	base := path.Base(pkg)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" && base != pkg {
		base = path.Base(path.Dir(pkg))
	}
	return base + ".test"
}
