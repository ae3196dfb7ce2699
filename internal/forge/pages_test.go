package forge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// smallPage is the bound of a page in these tests, in bytes.
const smallPage = 64 << 10

// flood gives issue 7 comments of these sizes, in bytes.
func flood(f *fake, sizes ...int) {
	f.issues[0].comments = nil
	for i, n := range sizes {
		f.issues[0].comments = append(f.issues[0].comments, fakeComment{int64(i + 1000), "eve", strings.Repeat("x", n), fakeTime.Add(time.Duration(i) * time.Minute)})
	}
}

// TestFlood has strangers write more than is read at once. Everything that is not too large
// by itself is still read, in order and once.
func TestFlood(t *testing.T) {
	const mega = smallPage / 8
	many := func(n, size int) []int { return slices.Repeat([]int{size}, n) }
	for _, v := range []struct {
		name  string
		sizes []int
		size  int // of the forge's pages, if it makes them smaller
		lost  int
	}{
		{"nothing", nil, 0, 0},
		{"small", many(250, 10), 0, 0},
		{"many of a megabyte", many(33, mega), 0, 0},
		{"one that is too large, alone", many(1, 9*mega), 0, 1},
		{"too large ones among small", slices.Concat(many(13, 10), many(1, 9*mega), many(40, 10), many(1, 10*mega), many(60, 10)), 0, 2},
		{"the last is too large", append(many(60, 10), 9*mega), 0, 1},
		{"two by two", many(9, 5*mega), 0, 0},
		{"in small pages", slices.Concat(many(29, 10), many(1, 9*mega), many(40, mega)), 7, 1},
	} {
		each(t, func(t *testing.T, f *fake, c *Client) {
			if f.provider != "gitea" { // whose list has no pages
				f.size = v.size
			}
			c.pageSize = smallPage
			flood(f, v.sizes...)
			var got []int
			more, err := c.EachComment(t.Context(), repo, issue7, time.Time{}, func(m Comment) bool {
				got = append(got, len(m.Body))
				return true
			})
			want := slices.DeleteFunc(slices.Clone(v.sizes), func(n int) bool { return n > smallPage })
			if err != nil || more != (v.lost > 0) || !slices.Equal(got, want) {
				t.Errorf("%s: %d of %d, more: %v, %v", v.name, len(got), len(want), more, err)
			}
			must[*Comment](t)(c.PostOnce(t.Context(), repo, issue7, "key-1", "Hello."))
			must[*Comment](t)(c.PostOnce(t.Context(), repo, issue7, "key-1", "Hello."))
			if n := once1["PostOnce"](f); n != 1 {
				t.Errorf("%s: posted %d times", v.name, n)
			}
		})
	}
}

// TestFloodStops checks that a caller who has enough gets no more, and that Comments bounds
// what it keeps.
func TestFloodStops(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		c.pageSize, c.textSize = smallPage, 2*smallPage
		flood(f, slices.Repeat([]int{smallPage / 8}, 40)...)
		n := 0
		more, err := c.EachComment(ctx, repo, issue7, time.Time{}, func(Comment) bool { n++; return n < 3 })
		if n != 3 || more || err != nil {
			t.Errorf("%d calls, more: %v, %v", n, more, err)
		}
		var ids []int64
		since := time.Time{}
		for range 4 {
			list, more, err := c.Comments(ctx, repo, issue7, since)
			if err != nil || len(list) == 0 {
				t.Fatalf("%d comments: %v", len(list), err)
			}
			size := 0
			for _, m := range list {
				size += len(m.Body)
				if !slices.Contains(ids, m.ID) {
					ids = append(ids, m.ID)
				}
			}
			if size > c.textSize {
				t.Errorf("%d bytes", size)
			}
			since = list[len(list)-1].Updated
			if !more {
				break
			}
		}
		if len(ids) != 40 || !slices.IsSorted(ids) {
			t.Errorf("asked again and again: %v", ids)
		}
	})
}

// TestFloodWithoutEnd has more than any walk reads: its bounds hold, what came first is
// given, and nothing is posted.
func TestFloodWithoutEnd(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		large := strings.Repeat("x", smallPage+1)
		c.login, c.pageSize = me, smallPage
		for name, one := range map[string]func(n int) string{
			"small":     func(n int) string { return fmt.Sprintf(`[{"id":%d,"type":"comment","body":"x"}]`, n) },
			"too large": func(n int) string { return map[bool]string{true: `[{"id":1,"type":"comment"}]`, false: large}[n == 1] },
		} {
			requests := 0
			f.spoil(func(w rw, r *req) bool {
				if r.Method != "GET" {
					return false
				}
				requests++
				w.Header().Set("Link", `<x>; rel="next"`)
				if strings.HasSuffix(r.URL.Path, "/comments") && f.provider == "gitea" {
					w.Header().Set("X-Total-Count", "1000000")
					return answer(200, large)(w, r)
				}
				q := r.URL.Query()
				n, _ := strconv.Atoi(q.Get("page"))
				if name == "too large" && n > 1 {
					n = 2
				}
				return answer(200, one(n))(w, r)
			}, nil)
			list, more, err := c.Comments(ctx, repo, issue7, time.Time{})
			if err != nil || !more || len(list) == 0 || requests > 10*maxPages+1 || name == "too large" && requests > maxLarge+2 {
				t.Errorf("%s: %d comments, more: %v, %v after %d requests", name, len(list), more, err, requests)
			}
			before := len(f.seen("POST"))
			if _, err := c.PostOnce(ctx, repo, issue7, "key-1", "Hello."); err == nil || !strings.Contains(err.Error(), "too many comments to tell") || len(f.seen("POST")) != before {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := c.PostOnce(ctx, repo, issue7, "key-1", strings.Repeat("x", maxPost+1)); err == nil || !strings.Contains(err.Error(), "too large") {
			t.Errorf("a comment that could not be read again: %v", err)
		}
	})
}

// TestListsFailWhole checks that other lists are whole or an error, also if their pages are
// too large.
func TestListsFailWhole(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		c.pageSize = smallPage
		for i := range 60 {
			f.issues = append(f.issues, &fakeThread{number: 1000 + i, title: "x", body: strings.Repeat("x", smallPage/8), state: "open", updated: fakeTime})
		}
		if n := len(must[[]Issue](t)(c.Changed(t.Context(), repo, fakeTime))); n != 63 {
			t.Errorf("%d issues", n)
		}
		f.issues[30].body = strings.Repeat("x", smallPage+1)
		if _, err := c.Changed(t.Context(), repo, fakeTime); err == nil || !strings.Contains(err.Error(), "something of more than 65536 bytes") {
			t.Errorf("%v", err)
		}
	})
}
