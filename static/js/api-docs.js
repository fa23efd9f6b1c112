// The page of the schema is Swagger's, whose dark colours hang on a class.
const { classList, dataset } = document.documentElement;
classList.toggle(
  "dark-mode",
  dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches,
);
