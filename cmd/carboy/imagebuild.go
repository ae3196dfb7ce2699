//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/agentimages"
	"github.com/carboy/carboy/internal/builder"
	"github.com/carboy/carboy/internal/dockerfile"
	"github.com/carboy/carboy/internal/safetext"
)

const imageBuildLong = `Build the image of a Dockerfile, without Docker and without root's rights, and print its
digest. Each RUN is the command of a bottle: it is the image's root, sees the image and
nothing of this machine, and reaches the hosts that --allow names, or none. Programs that
ignore variables such as SSL_CERT_FILE do not trust the gateway: --allow HOST:443/tcp passes
their TLS through.

FROM takes scratch, an earlier stage, or what carboy run --image takes; a relative path is one
in DIR. Known besides are RUN, also with here-documents, COPY, ADD of files, ENV, ARG,
WORKDIR, USER, ENTRYPOINT, CMD, LABEL, EXPOSE, SHELL, STOPSIGNAL; VOLUME is ignored. Anything
else is an error with its line: Docker or BuildKit can build that file.

A step is not carried out again if its instruction, files, variables, hosts and all before it
are those of an earlier build. At most 10 GiB of steps are kept, the latest used.

The result is one layer above the base image's. Owners are those that the steps set, and times
after the year 2000 become its first second, as SOURCE_DATE_EPOCH tells programs: the same
steps give the same digest.

carboy run --image built:NAME uses an image that -t named.

Instead of DIR, the name of an agent ({agents}) builds its
image, under that name: packages of Debian, and the agent from npm, all pinned by digest. A
directory of that name is ./NAME.`

const imageBuildExample = `  carboy image build claude && carboy run --image built:claude -- claude --version
  carboy image build -t box .
  carboy image build --allow deb.debian.org --allow registry.npmjs.org -t box ~/box
  carboy image build -f Dockerfile.dev --build-arg VERSION=3 --target tests .
  carboy run --image built:box -- make test`

type imageBuildFlags struct {
	file, name, target string
	allow, private     []string
	args               []string
	noCache, json      bool
}

func (a *app) imageBuildCmd() *cobra.Command {
	var f imageBuildFlags
	cmd := &cobra.Command{
		Use: "build DIR|AGENT", Short: "build an image from a Dockerfile", Long: strings.Replace(imageBuildLong, "{agents}", strings.Join(agentimages.Names(), ", "), 1), Example: imageBuildExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("name the directory: carboy image build DIR", "image build: %d directories", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o, done, err := f.options(args[0])
			if err != nil {
				return err
			}
			defer done()
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error { return a.buildImage(ctx, c, o, f.json) })
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "file", "f", "", "the Dockerfile (`FILE`; default: DIR/Dockerfile)")
	fs.StringVarP(&f.name, "tag", "t", "", "the `NAME` by which --image built:NAME finds the image")
	fs.StringArrayVar(&f.allow, "allow", nil, "let RUN reach `HOST[:PORT][/PATH]`, as carboy run --allow does; repeatable")
	fs.StringArrayVar(&f.private, "allow-private", nil, "let RUN reach `HOST[:PORT]`, which may have a private address; repeatable")
	fs.StringArrayVar(&f.args, "build-arg", nil, "the value of an ARG (`NAME=VALUE`; NAME: this variable's); repeatable")
	fs.StringVar(&f.target, "target", "", "build this `STAGE` (default: the last one)")
	fs.BoolVar(&f.noCache, "no-cache", false, "carry out every step")
	fs.BoolVar(&f.json, "json", false, "print ref, digest, root, config, layers, bytes, left, when")
	return cmd
}

// options opens the directory and reads the Dockerfile.
func (f *imageBuildFlags) options(dir string) (o carboy.MakeOptions, done func(), err error) {
	o = carboy.MakeOptions{Name: f.name, Target: f.target, Allow: f.allow, AllowPrivate: f.private, NoCache: f.noCache, Args: map[string]string{}}
	for _, arg := range f.args {
		name, value, given := strings.Cut(arg, "=")
		if !given {
			value, given = os.LookupEnv(name)
		}
		if !given || name == "" {
			return o, nil, usagef("write NAME=VALUE, or set the variable", "--build-arg %.80q has no value", arg)
		}
		o.Args[name] = value
	}
	if slices.Contains(agentimages.Names(), dir) {
		if o.Name = f.name; o.Name == "" {
			o.Name = dir
		}
		done, err = agentimages.Open(dir, &o)
		return o, done, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return o, nil, err
	}
	if o.File = f.file; o.File == "" {
		o.File = filepath.Join(dir, "Dockerfile")
	}
	file, err := os.Open(o.File)
	if err != nil {
		return o, nil, fmt.Errorf("the Dockerfile: %w", err)
	}
	defer file.Close()
	if o.Text, err = io.ReadAll(io.LimitReader(file, dockerfile.MaxFile+1)); err != nil {
		return o, nil, fmt.Errorf("the Dockerfile: %w", err)
	}
	if whole, err := filepath.Abs(o.File); err == nil {
		o.Ignore, err = filepath.Rel(dir, whole)
		if err != nil || !filepath.IsLocal(o.Ignore) {
			o.Ignore = "Dockerfile"
		}
	}
	if o.Context, err = os.OpenRoot(dir); err != nil {
		return o, nil, err
	}
	return o, func() { o.Context.Close() }, nil
}

// buildImage builds an image and prints the progress.
func (a *app) buildImage(ctx context.Context, c *carboy.Client, o carboy.MakeOptions, asJSON bool) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	o.Say = func(p builder.Progress) {
		style := dimText
		if p.Step > 0 {
			style = plainText
		}
		a.say(style, "%s", safetext.String(p.String(), 300))
	}
	img, err := c.MakeImage(ctx, o)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w while the image was built; finished steps are kept", carboy.ErrInterrupted)
	case err != nil:
		return err
	}
	return a.printImage(img, asJSON)
}
